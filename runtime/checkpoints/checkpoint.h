// Saves and loads checkpoints. A checkpoint is a folder with one safetensors file per rank, holding
// the parts of logical tensors that the rank owns, and a manifest:
//
//   step-00000004.part/      written first, by all ranks
//     rank-00000.safetensors
//     rank-00001.safetensors
//     manifest.json          last, by rank 0: length and checksum of every file
//   step-00000004/           the folder renamed; only then are older checkpoints removed
//
// A part is named by tensor, kind (weight, moment, master, residual), age and range, never by
// storage. So a run can go on with any mesh that the model fits: bit for bit on the same mesh, up
// to rounding on another.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "engine/job/job.h"
#include "engine/link/link.h"
#include "runtime/checkpoints/manifest.h"
#include "runtime/control/control.h"
#include "runtime/execution/executor.h"

namespace rehearse::runtime {

/// Saves the state before step `step` to FOLDER/step-NNNNNNNN and removes all but the last two
/// checkpoints. Every rank calls it. When a rank cannot write, every rank throws BackendError that
/// names rank, file and cause; earlier checkpoints stay.
void save_checkpoint(const std::string& folder, std::int64_t step, const ExecutorContext& context,
                     Executor& executor, const PlanRecord& record = {});

/// Fills the state from a checkpoint and returns the step to go on with. Every rank calls it and
/// checks the checksums of its share of the files. Throws InputError that names the file: unknown
/// version, another model, truncated, wrong checksum, or a tensor that is missing (saved with
/// another optimizer or precision).
std::int64_t load_checkpoint(const std::string& checkpoint, const ExecutorContext& context,
                             Executor& executor);

}  // namespace rehearse::runtime
