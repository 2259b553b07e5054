// Which op may start next: lanes, `after` lists and shifts of every rank, as counters. An instance
// (rank, op, step) may start when its counter is zero and its lane has come to it; what ends it
// counts down those that wait for it. Counters exist for a window of steps, which grows where a
// program lets an op run ahead of those that wait for it.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/link/link.h"

namespace rehearse::link {

/// An instance that may start, on a rank that its lane tells.
struct Ready {
  Id op = none;
  int step = 0;
  double since = 0;  // when its lane was free and what it waits for had ended
};

/// One lane of one rank.
struct RankLane {
  Id role = none, place = none, lane = none;
  bool arrival = false, busy = false, queued = false;
  int iteration = 0;       // in order: of the next op
  std::uint32_t next = 0;  // in order: position on the lane
  double free_at = 0;
  Ready current = {};             // while busy
  std::vector<Ready> ready = {};  // by arrival: a heap
};

class Readiness {
 public:
  Readiness(const OrderedProgram& linked, int steps);

  std::vector<RankLane>& lanes() { return lanes_; }
  Id lane_id(Id role, Id place, Id lane) const {
    return roles_[role].first_lane + place * roles_[role].lanes + lane;
  }
  /// The lane is free and its next instance may start: removes it from the lane.
  bool next(RankLane& lane, Ready& out);
  /// An instance has ended. Appends lanes on which something may have become ready.
  void finish(const RankLane& lane, Id op, int step, double end, std::vector<Id>& lanes);
  /// Free-running roles begin no further iteration.
  void stop_free_running() { stopped_ = true; }
  /// Instances of roles that are not free-running.
  std::int64_t expected() const { return expected_; }
  std::int64_t finished() const { return finished_; }
  /// What does not go on, for a message: at most `limit` lines.
  std::string stuck(int limit) const;

 private:
  struct Instance {
    double since = 0;
    std::uint32_t missing = 0;
  };
  struct RoleState {
    Id first_lane = 0, lanes = 0, ops = 0;
    int limit = 0;  // steps; free-running: no limit
    int max_shift = 0;
    std::size_t window = 1;                // a power of two
    std::vector<Instance> instances = {};  // (place * ops + op) * window + step % window
    std::vector<int> done = {};            // by place * ops + op: steps finished
    const WaitTable* waits = nullptr;
  };

  std::uint32_t need(const RoleState& role, Id op, int step) const;
  Instance& instance(RoleState& role, Id place, Id op, int step);
  void widen(RoleState& role);
  void make_ready(RoleState& role, Id place, Id op, int step, double since, std::vector<Id>& lanes);

  const OrderedProgram& linked_;
  std::vector<RoleState> roles_ = {};
  std::vector<RankLane> lanes_ = {};
  std::int64_t expected_ = 0, finished_ = 0;
  bool stopped_ = false;
};

}  // namespace rehearse::link
