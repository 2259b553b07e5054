// Finds where a run begins, at step 0 or at a checkpoint, and checks that train.out can be written.
// All ranks decide together, before a run that is already in train.out is changed.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "runtime/checkpoints/collect.h"
#include "runtime/control/control.h"
#include "runtime/device/device.h"
#include "runtime/executor/executor.h"
#include "runtime/training/train.h"

namespace rehearse::runtime {

struct RunStart {
  std::string checkpoint = {};  // to resume from; empty: the run begins at step 0
  bool within = false;  // the checkpoint belongs to the run in train.out, which is continued
  HeldByAll held =
      {};  // its newest is the checkpoint, which must be collected first; or it has none
  /// Rank 0, where the run chose the checkpoint: newer ones.
  std::vector<PassedOver> passed = {};
};

/// Every rank calls it. Throws the same InputError on all ranks when there is no checkpoint to
/// resume from, its manifest is damaged, or train.out cannot be written or holds another run. May
/// create the folder train.out.
RunStart find_start(const job::Job& job, const TrainOptions& options, const NodeStore& store,
                    Control& control);

/// Throws InputError when the job asks for more threads than a rank of this machine can use.
void check_threads(const job::Job& job);
/// Throws InputError unless as many ranks were started as the job's mesh has.
void check_ranks(const job::Job& job, const Environment& environment);
/// How many threads kernels of this rank use, and how its process keeps memory.
void set_threads(const job::Job& job, const Environment& environment);
/// What users must know of the device that the run trains on: sentences.
std::vector<std::string> about_device(const job::Job& job, Device& device,
                                      const Executor& executor);
/// Throws InputError for a job without data, one whose ranks would never exchange weights, and one
/// with recovery.slow_factor whose ranks do not wait for each other.
void check_trainable(const job::Job& job, const link::LinkedProgram& linked);
/// The next step before which the run stops to evaluate or save, or the end of the run.
std::int64_t next_boundary(const job::Job& job, std::int64_t step);

/// Runs `read`, which reads a checkpoint. If `read` throws InputError because the checkpoint is
/// damaged, adds to the message which checkpoint to use instead. Calls `alive`, if there is one,
/// while it looks for that.
void reading_checkpoint(const std::string& checkpoint, const std::function<void()>& read,
                        const std::function<void()>& alive = {});

}  // namespace rehearse::runtime
