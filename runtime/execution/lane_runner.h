// Runs the lanes of one rank as threads. A lane issues its ops in order; an op waits until the
// instances named in its `after` list have completed, counted per op, so a wait on another step
// (lag) is a comparison of two numbers. There is no barrier between steps: the gate only keeps a
// lane from entering a step that the run will not have. The first error in any lane stops all.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/program/program.h"
#include "runtime/control/control.h"

namespace rehearse::runtime {

struct Task {
  Id op = none;
  int shift = 0;
  std::vector<link::Wait> waits = {};
};
struct TaskLane {
  std::string name = {};
  program::Order order = program::Order::in_order;
  std::vector<Task> tasks = {};
  LaneProgress* progress = nullptr;  // may be null
};

/// The lanes of a role as its program says. An op waits besides for every op of its own rank that
/// shares an operand with it and must precede it: that the members of a rendezvous end together is
/// the model's simplification, here one member may go on while another still has to read.
std::vector<TaskLane> lanes_of(const link::OrderedProgram& linked, Id role);
/// Only the ops marked in `wanted`, for one step by itself: an op waits for the wanted ops that it
/// could not have started before, through whatever lies between. Lags and shifts fall away.
std::vector<TaskLane> lanes_of(const link::OrderedProgram& linked, Id role,
                               const std::vector<bool>& wanted);

/// When an op of a lane ran, in nanoseconds of the steady clock.
struct OpTimes {
  std::int64_t step = 0, start = 0, end = 0;
  Id op = none;
};

class LaneRunner {
 public:
  /// What the lanes call, from their threads.
  struct Hooks {
    /// False: what the op waits for will never come, the run ends before this step.
    std::function<bool(Id op, std::int64_t step)> execute = {};
    /// Once per step, in order, before its first op: false ends the run before that step. Null:
    /// always true.
    std::function<bool(std::int64_t step)> begin_step = {};
    /// After an error, once: wake whatever blocks in `execute`. Null: nothing does.
    std::function<void(const std::string& what)> failed = {};
  };
  /// `main_lane` runs on the thread that calls `run`, every other one on a thread of its own.
  LaneRunner(std::size_t ops, std::vector<TaskLane> lanes, std::size_t main_lane, Hooks hooks);

  /// Runs steps [first, last) and waits until all their ops have completed. Returns the step after
  /// the last one that ran. Rethrows the first error of any lane.
  std::int64_t run(std::int64_t first, std::int64_t last);

  /// Keep stamps of the next `ops` ops of each lane (0: none), in memory taken now.
  void keep_stamps(std::size_t ops);
  const std::vector<std::vector<OpTimes>>& stamps() const { return stamps_; }

 private:
  /// Twice the instances completed; the lowest bit only wakes whoever waits.
  struct alignas(64) Counter {
    std::atomic<std::int32_t> value = 0;
  };

  void run_lane(std::size_t lane);
  // False: the run was stopped or ended before this step, and so does the lane.
  bool run_in_order(std::size_t lane);
  bool run_by_arrival(std::size_t lane);
  bool perform(std::size_t lane, const Task& task, std::int64_t step);
  bool open(std::int64_t step);
  bool satisfied(const Task& task, std::int64_t step) const;
  bool wait_for(const TaskLane& lane, const Task& task, std::int64_t step);
  void stop(std::exception_ptr error, const std::string& what);
  void end_before(std::int64_t step);

  std::vector<TaskLane> lanes_;
  std::size_t main_lane_;
  Hooks hooks_;
  std::size_t ops_;
  std::unique_ptr<Counter[]> completed_;
  std::atomic<std::int32_t> pulse_ = 0;  // rises with every completion, for lanes by arrival
  bool pulses_ = false;
  std::atomic<bool> stopped_ = false;
  std::atomic<std::int64_t> opened_ = 0, end_ = 0;
  std::int64_t first_ = 0;
  std::mutex gate_, error_lock_;
  std::exception_ptr error_ = {};
  std::vector<std::vector<OpTimes>> stamps_;
};

}  // namespace rehearse::runtime
