// Saves the checkpoints of a run: those for which all ranks stop, and those that the program writes
// behind training. Strikes them where a fault trace says so.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "runtime/checkpoints/checkpoint.h"
#include "runtime/checkpoints/files/manifest.h"
#include "runtime/checkpoints/files/node_store.h"
#include "runtime/training/placed.h"
#include "runtime/training/progress.h"

namespace rehearse::runtime {

class Saver {
 public:
  /// `between`: all ranks, for copies to other nodes. `lane` tells the others of a save's progress.
  /// `faults` null: none. The references must outlive this object.
  Saver(const job::Job& job, const NodeStore& store, Communicator& between, LaneProgress& lane,
        Progress& progress, FaultInjector* faults)
      : job_(job),
        store_(store),
        between_(between),
        lane_(lane),
        progress_(progress),
        faults_(faults) {}

  /// Call before steps run under a plan, which must outlive them.
  void use(PlacedPlan& plan);
  /// Saves the state before step `step`, while no step runs. Does nothing if the program has just
  /// saved it, or the job has no train.out. `last`: the run ends with it, and it goes to train.out
  /// whatever the job's checkpoints do. Every rank calls it.
  void save(std::int64_t step, bool last, TrainSummary& summary);
  /// Tells of the checkpoints that the program has saved since the last call.
  void tell(TrainSummary& summary);

 private:
  void save_behind(std::int64_t step, std::int64_t skipped);
  SaveTarget target_of(std::int64_t step, bool last);
  double disk_slowdown(bool shared) const;
  void strike(const SaveTarget& target, std::int64_t step);
  PlanRecord record() const;

  const job::Job& job_;
  const NodeStore& store_;
  Communicator& between_;
  LaneProgress& lane_;
  Progress& progress_;
  FaultInjector* faults_;
  PlacedPlan* plan_ = nullptr;
  int placement_ = -1;       // of the plan whose parts `base_` has
  IncrementBase base_ = {};  // kind incremental
  std::mutex lock_;          // of `saved_`, to which the thread of the lane that saves adds
  struct Saved {
    std::int64_t step = 0;
    std::string path = {};
    double seconds = 0;
  };
  std::vector<Saved> saved_ = {};
  std::int64_t told_ = -1;          // the last step that was told of
  bool told_of_train_out_ = false;  // whether that one is in train.out
};

}  // namespace rehearse::runtime
