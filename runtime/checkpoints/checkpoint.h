// Checkpoints: one safetensors file per rank, with the parts of logical tensors that the rank owns,
// and a manifest that says what they are. Parts are named by tensor, kind (weight, moment, master,
// residual), age and range, never by storage, so a run goes on from them on any mesh that the model
// fits: bit for bit on the same one, up to rounding on another. A checkpoint is written beside its
// name and renamed when every rank's part is on disk; the one before it is removed only after that.
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

/// Saves the state before step `step` to FOLDER/step-NNNNNNNN and removes all but the last two.
/// Every rank calls it. Throws BackendError on every rank when one of them could not write (names
/// rank, file and cause); earlier checkpoints stay.
void save_checkpoint(const std::string& folder, std::int64_t step, const ExecutorContext& context,
                     Executor& executor, const PlanRecord& record = {});

/// Fills the state from a checkpoint and returns the step to go on with. Throws InputError that
/// names the file: unknown version, another model, truncated, checksum that does not match (of any
/// shard, once every rank has called it), a tensor that is missing (another optimizer or
/// precision).
std::int64_t load_checkpoint(const std::string& checkpoint, const ExecutorContext& context,
                             Executor& executor);

}  // namespace rehearse::runtime
