// Runs the lanes of one rank as threads that issue their ops on streams of a device. A counter per
// op says how many steps of the op have been issued, so a wait of any lag is a comparison of two
// numbers; the stream then waits for the event of that op and step. On the CPU an op has ended when
// it is issued. There is no barrier between steps: the gate only keeps a lane from entering a step
// that the run will not execute. The first error in any lane stops all lanes.
//
//   op X of step s waits for op Y of step s - lag:   go when issued(Y) >= s - lag - first + 1
#pragma once
#include <atomic>
#include <boost/circular_buffer.hpp>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/program/program.h"
#include "runtime/device/device.h"
#include "runtime/executor/lanes/issue_counter.h"
#include "runtime/executor/lanes/task_lanes.h"
#include "runtime/executor/lanes/turnstile.h"
#include "runtime/executor/lanes/under_way.h"

namespace rehearse::runtime {

/// The host issues an op when the device has ended it so many steps before.
inline constexpr std::int64_t run_ahead = 2;

/// When a stream ran an op, in nanoseconds of the steady clock.
struct OpTimes {
  std::int64_t step = 0, start = 0, end = 0;
  Id op = none;
};

class LaneRunner {
 public:
  struct Hooks {
    /// Prepares what an op reads in host memory, on the thread of its lane, before the op is
    /// issued. The op has ended in the last step but one. Null: nothing.
    std::function<void(Id op, std::int64_t step)> stage = {};
    /// Runs what of an op with Task::host is the host's own, before `execute` and on its thread.
    std::function<void(Id op, std::int64_t step)> host = {};
    /// Runs an op, on the thread that runs the lane's stream. False: the run ends after `step`. No
    /// op of a later step that waits for this op runs.
    std::function<bool(Id op, std::int64_t step)> execute = {};
    /// Called once per step, in step order, before the step's first op. False ends the run before
    /// that step. Null: always true.
    std::function<bool(std::int64_t step)> begin_step = {};
    /// Called for each step, in order, on the thread that called `run`, when the last op of the
    /// main lane in this step and all ops with Task::tells have ended. On a synchronous device that
    /// is right after this last op, unless another lane is behind. On a device that runs behind the
    /// host it is once the main lane has issued the next step, or the run ends. Null: no call.
    std::function<void(std::int64_t step)> stepped = {};
    /// Called once, after the first error: must wake all lanes that block in `execute`. Null: no
    /// call.
    std::function<void(const std::string& what)> failed = {};
  };
  /// `main_lane` runs on the thread that calls `run`, every other lane on a thread of its own.
  /// `turns`: the order in which an asynchronous device gets the ops that meet other ranks.
  LaneRunner(Device& device, std::size_t ops, std::vector<TaskLane> lanes, std::size_t main_lane,
             Hooks hooks, std::vector<Turn> turns = {});

  /// Runs steps [first, last) and waits until all their ops have ended. Returns the step after
  /// the last one that ran. Rethrows the first error of any lane.
  std::int64_t run(std::int64_t first, std::int64_t last);

  /// Records the times of the next `ops` ops of each lane (0: none). Allocates the memory now.
  void keep_stamps(std::size_t ops);
  const std::vector<std::vector<OpTimes>>& stamps() const { return stamps_; }
  /// Seconds that ops with Task::computes took, of all runs. Any thread may ask.
  double computed_seconds() const;

  /// The op at which the stream of a lane is, on an asynchronous device.
  struct Place {
    Id op = none;
    std::int64_t step = 0;
    bool dependent = false;  // it has not begun: what it waits for on another lane has not ended
  };
  /// Nothing when the stream has ended all that it was given. Any thread may ask.
  std::optional<Place> place(std::size_t lane) const;

 private:
  /// Marks of one op and step on its stream.
  struct Span {
    std::shared_ptr<Event> begin = {}, end = {};
  };
  /// An op that is timed and whose time nobody has read yet.
  struct Issued {
    std::int64_t step = 0;
    Id op = none;
    bool computes = false;
  };
  /// A mark on a stream whose time by the steady clock is known.
  struct Epoch {
    std::shared_ptr<Event> mark = {};
    std::int64_t nanoseconds = 0;
  };

  void run_lane(std::size_t lane);
  // Both return false when the run was stopped.
  bool run_in_order(std::size_t lane);
  bool run_by_arrival(std::size_t lane);
  void perform(std::size_t lane, const Task& task, std::int64_t step);
  static void run_body(void* self, const Body& body);
  static void run_host(void* self, const Body& body);
  /// Runs `part`. An error in it stops the run.
  template <class F>
  void guard(const F& part);
  bool keeps_stamps(std::size_t lane) const {
    return stamps_[lane].size() + timed_[lane].size() < stamps_[lane].capacity();
  }
  /// For all lanes at once, so that their times can be compared.
  void mark_epoch();
  void make_spans(Id op);
  Span& span(Id op, std::int64_t step);
  /// Reads the times of the lane's timed ops that have ended.
  void read_times(std::size_t lane);
  /// What stands for the end of an op in a step, the last few steps of which are kept.
  Event& event(Id op, std::int64_t step) const;
  /// Calls `stepped` for steps that have ended; waits for all but the last `under_way`.
  void deliver(std::size_t under_way);
  /// Whether `op` has ended in a step of which the main lane has issued all ops; waits for that if
  /// `wait`.
  bool ended(Id op, std::int64_t step, bool wait) const;
  /// Whether the run has this step, as far as is known now.
  bool open(std::int64_t step);
  bool satisfied(const Task& task, std::int64_t step) const;
  /// Returns when the task may run, the run ends before the step, or it was stopped.
  void wait_for(const TaskLane& lane, const Task& task, std::int64_t step);
  void stop(std::exception_ptr error, const std::string& what);
  void end_after(std::int64_t step);

  Device& device_;
  std::vector<TaskLane> lanes_;
  std::size_t main_lane_;
  // The last op of a step on the main lane, then ops with Task::tells of other lanes.
  std::vector<Id> step_ends_ = {};
  Hooks hooks_;
  std::size_t ops_;
  std::vector<std::unique_ptr<Stream>> streams_ = {};  // by lane
  std::vector<std::shared_ptr<Event>> events_ = {};    // see `event`
  std::vector<Span> spans_ = {};  // by op and step as events_; null for ops that are never timed
  std::vector<boost::circular_buffer<Issued>> timed_ = {};  // by lane, oldest first
  std::atomic<std::int64_t> computed_ = 0;                  // nanoseconds
  Turnstile turnstile_;
  std::deque<UnderWay> under_way_ = {};  // by lane
  // Steps whose `stepped` has not been called: the last one, and the one whose last op was issued.
  boost::circular_buffer<std::int64_t> ended_ = boost::circular_buffer<std::int64_t>(2);
  std::unique_ptr<IssueCounter[]> issued_;
  std::atomic<std::int32_t> pulse_ = 0;  // changes with every op; lanes by arrival wait on it
  bool pulses_ = false;
  std::atomic<bool> stopped_ = false;
  std::atomic<std::int64_t> first_ = 0, opened_ = 0, end_ = 0;
  std::mutex gate_, error_lock_;
  std::exception_ptr error_ = {};
  std::vector<Epoch> epochs_;  // by lane; used while stamps are kept
  std::vector<std::vector<OpTimes>> stamps_;
};

}  // namespace rehearse::runtime
