// When an op may start, as vector clocks: one step's ops become events (a rendezvous is one event
// of several roles), the events of a few steps are sorted topologically, and each carries, for
// every lane of every role, how many of the lane's ops have ended before it starts. Clocks answer
// the linker's questions: is a hazard covered, is a wait redundant, may two values share bytes.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/link/link.h"

namespace rehearse::link {

class StepClocks {
 public:
  /// Of a program whose lanes and events are known (LinkedRole::lane_ops, LinkedProgram::events).
  /// `lag`: the most steps between two ops that will be asked about. Throws ProgramError that
  /// prints the cycle when the ops wait for each other.
  StepClocks(const LinkedProgram& linked, int lag);

  /// Steps [0, steps()) were sorted; those of steps before steps() - most_shift() have all that
  /// iterations shifted behind them can add.
  int steps() const { return steps_; }
  int most_shift() const { return most_shift_; }
  /// A step whose ops have their steady-state predecessors.
  int steady() const { return steps_ - 1 - most_shift_; }
  /// (step, event), each after all it waits for.
  const std::vector<std::pair<int, Id>>& sorted() const { return sorted_; }

  std::size_t dimensions() const { return dimensions_; }
  /// An op's place in a clock, and the least entry there once its instance of `step` has ended.
  std::uint32_t entry(Id role, Id op) const { return entries_[role][op]; }
  std::uint32_t number(Id role, Id op, int step) const;
  bool ended(const std::uint32_t* clock, Id role, Id op, int step) const {
    return clock[entry(role, op)] >= number(role, op, step);
  }

  /// What an op itself waits for, without what the other members of its rendezvous wait for: a real
  /// collective reads and writes as soon as its own rank has issued it. Valid until the next call.
  const std::uint32_t* before(Id role, Id op, int step);
  /// The places in `after` of waits that its lane and its other waits imply; throttles left out.
  std::vector<std::size_t> implied_waits(Id role, Id op, int step);

  /// Calls f(role, op, step) for whatever an op waits for, by lane order and by its waits.
  template <class F>
  void waits(Id role, Id op, int step, F f) const {
    if (const auto [at, last] = lane_predecessor(role, op, step); last != none) f(role, last, at);
    for (const program::After& a : linked_.program.roles[role].ops[op].after)
      if (const int at = step - a.lag; at >= 0) f(role, a.op, at);
  }

 private:
  void number_lanes();
  void check_size() const;
  void sort();
  /// What has ended when this op's instance has: to be joined into `into`.
  void join_end(Id role, Id op, int step, std::vector<std::uint32_t>& into);
  std::pair<int, Id> lane_predecessor(Id role, Id op, int step) const;
  std::size_t node(int step, Id event) const {
    return static_cast<std::size_t>(step) * linked_.events.size() + event;
  }
  std::uint32_t* clock(int step, Id event) {
    return clocks_.data() + node(step, event) * dimensions_;
  }
  [[noreturn]] void report_deadlock(const std::vector<std::uint32_t>& missing) const;

  const LinkedProgram& linked_;
  std::vector<std::vector<std::uint32_t>> entries_ = {}, places_ = {};  // [role][op]
  std::uint32_t dimensions_ = 0;
  int most_shift_ = 0, steps_ = 0;
  std::vector<std::uint32_t> clocks_ = {};  // [step][event][dimension]: before the event starts
  std::vector<std::pair<int, Id>> sorted_ = {};
  std::vector<std::uint32_t> local_ = {};
};

}  // namespace rehearse::link
