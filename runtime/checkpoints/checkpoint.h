// Saves and loads checkpoints. A checkpoint is a folder with one safetensors file per rank, holding
// the parts of logical tensors that the rank owns, and a manifest:
//
//   step-00000004.part/      written first, by all ranks
//     rank-00000.safetensors
//     rank-00001.safetensors
//     manifest.json          last, by rank 0: length and checksum of every file
//   step-00000004/           the folder renamed; only then are older checkpoints removed
//
// An incremental checkpoint has the same files, with what differs from a whole one in the same
// folder (increment.h), and its manifest names that one.
//
// A part is named by tensor, kind (weight, moment, master, residual), age and range, never by
// storage. So a run can go on with any mesh that the model fits: bit for bit on the same mesh, up
// to rounding on another.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "engine/link/link.h"
#include "runtime/checkpoints/files/increment.h"
#include "runtime/checkpoints/files/manifest.h"
#include "runtime/communication/communicator.h"
#include "runtime/control/control.h"
#include "runtime/executor/executor.h"

namespace rehearse::runtime {

/// Where a rank's part of a checkpoint goes.
struct SaveTarget {
  std::string folder = {};
  bool leads = false;   // the rank makes the folder and writes the manifest
  bool divides = true;  // ranks with equal parts write a share each; false: the lowest writes them
  /// The ranks that get a copy of the part, and those whose parts are copied here.
  std::vector<Id> to = {}, from = {};
  Communicator* between = nullptr;  // of all ranks; null: `to` and `from` are empty
  /// Kind incremental: what this rank keeps of the last whole checkpoint. Without one the
  /// checkpoint is whole, and is kept. Null: every checkpoint is whole.
  IncrementBase* base = nullptr;
  int bits = 0;         // of quantised differences
  double slowdown = 1;  // on purpose: a write takes so many times as long
  /// Tells the other ranks of the save's progress, so that it may take longer than any timeout.
  /// Without one, no rank may take longer than another by the join timeout.
  LaneProgress* lane = nullptr;
};

/// What has been written.
struct SavedCheckpoint {
  std::int64_t bytes = 0;               // of all shards
  std::optional<BaseRecord> base = {};  // of an incremental one
};

DataRecord data_record(const Data& data);

/// Saves the state before step `step` to FOLDER/step-NNNNNNNN and removes all but the last two
/// checkpoints, and the last two whole ones, there. Every rank calls it. When a rank cannot write,
/// every rank throws BackendError that names rank, file and cause; earlier checkpoints stay.
SavedCheckpoint save_checkpoint(const SaveTarget& target, std::int64_t step,
                                const ExecutorContext& context, Executor& executor,
                                const PlanRecord& record = {});
/// The same, in a folder that all ranks share.
SavedCheckpoint save_checkpoint(const std::string& folder, std::int64_t step,
                                const ExecutorContext& context, Executor& executor,
                                const PlanRecord& record = {});

/// The same from the snapshot in host memory that the program's Copy ops have made of the state
/// before step `step`. Called from the hook of Executor::on_save, while training goes on.
/// `skipped`: Executor::skipped_updates() at the time of the snapshot.
void save_snapshot(const SaveTarget& target, std::int64_t step, const ExecutorContext& context,
                   Executor& executor, std::int64_t skipped, const PlanRecord& record = {});

struct LoadOptions {
  /// Of this state nothing is read: moments and residuals stay 0, older versions of weights start
  /// as the newest.
  std::vector<job::LeftState> without = {};
  double slowdown = 1;  // on purpose, reading takes so many times as long
  /// Gets a sentence about state that this program does not have.
  std::function<void(const std::string&)> tell = {};
  /// Called again and again while files are read: a sign of life.
  std::function<void()> alive = {};
};

/// Fills the state from a checkpoint and returns the step to go on with. Every rank calls it and
/// checks the checksums of its share of the files. Throws InputError that names the file: unknown
/// version, another model or optimizer, truncated, wrong checksum, or a tensor that is missing
/// (saved with another precision).
std::int64_t load_checkpoint(const std::string& checkpoint, const ExecutorContext& context,
                             Executor& executor, const LoadOptions& options = {});

}  // namespace rehearse::runtime
