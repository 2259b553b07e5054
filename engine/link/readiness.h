// Decides which op may start next on every lane of every rank. Each instance (rank, op, step) has a
// counter of unfinished waits. It may start when the counter is 0 and its lane has reached it; when
// an instance ends, the counters of the instances that wait for it go down by one. Counters are
// kept for a window of steps. The window grows when an op runs further ahead of its dependents.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/link/link.h"

namespace rehearse::link {

/// An instance that may start. The lane that it is on gives the rank.
struct Ready {
  Id op = none;
  int step = 0;
  double since = 0;  // when its lane was free and all its waits had ended
};

/// One lane of one rank.
struct RankLane {
  Id role = none, place = none, lane = none;
  bool arrival = false, busy = false, queued = false;
  int iteration = 0;       // in-order lanes: macro-iteration of the next op
  std::uint32_t next = 0;  // in-order lanes: position of the next op
  double free_at = 0;
  Ready current = {};             // the running instance, while busy
  std::vector<Ready> ready = {};  // lanes by arrival: a heap, earliest first
};

class Readiness {
 public:
  Readiness(const OrderedProgram& linked, int steps);

  std::vector<RankLane>& lanes() { return lanes_; }
  const std::vector<RankLane>& lanes() const { return lanes_; }
  const program::Program& program() const { return linked_.program; }
  Id lane_id(Id role, Id place, Id lane) const {
    return roles_[role].first_lane + place * roles_[role].lanes + lane;
  }
  /// For a free lane: takes the next instance that may start off the lane into `out`. Returns false
  /// when none may start.
  bool next(RankLane& lane, Ready& out);
  /// Records that an instance ended at `end`. Appends to `lanes` the lanes on which an instance may
  /// have become ready.
  void finish(const RankLane& lane, Id op, int step, double end, std::vector<Id>& lanes);
  /// From now on free-running roles begin no further iteration.
  void stop_free_running() { stopped_ = true; }
  /// Number of instances to run; free-running roles do not count.
  std::int64_t instances_to_run() const { return instances_to_run_; }
  std::int64_t finished() const { return finished_; }
  /// The ops that cannot proceed, for an error message: at most `limit` lines.
  std::string stuck(int limit) const;

 private:
  struct Instance {
    double since = 0;
    std::uint32_t missing = 0;
  };
  struct RoleState {
    Id first_lane = 0, lanes = 0, ops = 0;
    int limit = 0;  // number of steps; the largest int for a free-running role
    int max_shift = 0;
    std::size_t window = 1;                // a power of two
    std::vector<Instance> instances = {};  // (place * ops + op) * window + step % window
    std::vector<int> done = {};            // by place * ops + op: steps finished
    const WaitTable* waits = nullptr;
    WaitTable dependents = {};
  };

  std::uint32_t need(const RoleState& role, Id op, int step) const;
  Instance& instance(RoleState& role, Id place, Id op, int step);
  void widen(RoleState& role);
  void make_ready(RoleState& role, Id place, Id op, int step, double since, std::vector<Id>& lanes);

  const OrderedProgram& linked_;
  std::vector<RoleState> roles_ = {};
  std::vector<RankLane> lanes_ = {};
  std::int64_t instances_to_run_ = 0, finished_ = 0;
  bool stopped_ = false;
};

}  // namespace rehearse::link
