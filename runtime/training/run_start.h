// Where a run begins: at step 0 or at a checkpoint, in a folder that may be written. All ranks
// decide it together, before anything is changed on disk.
#pragma once
#include <functional>
#include <string>

#include "engine/job/job.h"
#include "runtime/control/control.h"
#include "runtime/training/train.h"

namespace rehearse::runtime {

struct RunStart {
  std::string checkpoint = {};  // to go on from; empty: the run begins
  bool within = false;          // the run in train.out goes on
};

/// Every rank calls it. Throws InputError on all of them, with the same words, when there is no
/// checkpoint to go on from, its manifest is damaged, or train.out may not be written or holds
/// another run.
RunStart find_start(const job::Job& job, const TrainOptions& options, Control& control);

/// Runs `read`, which reads a checkpoint. What that refuses of a damaged one also says which one to
/// take instead.
void reading_checkpoint(const std::string& checkpoint, const std::function<void()>& read);

}  // namespace rehearse::runtime
