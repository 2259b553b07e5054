// Vector clocks: what has ended before an op starts, in every possible timing. An event is a local
// op, or all the ops that meet in a rendezvous. The events of a few steps are sorted topologically.
// Each event has a clock: for every lane of every role, how many of the lane's ops end before the
// event starts. With clocks the linker decides whether a hazard (hazards.h) is covered, whether a
// wait is redundant, and whether two values may share bytes.
//
//   lane compute   F0 -> B0 -------------> U0 -> F1     F forward, B backward, U update,
//                          \             ^              A all-reduce; the digit is the step
//   lane dp                 `---> A0 ---'
//
//   Ops of a lane are numbered 1, 2, ... over all steps: F0 is 1, B0 2, U0 3, F1 4; A0 is 1.
//   The clock (compute, dp) before A0 is (2, 0), before U0 it is (2, 1). U0 reads the gradient that
//   A0 wrote. Its clock has dp >= 1, the number of A0, so this hazard is covered.
//
// All these questions are about two ops of one role. So a clock covers all roles only while the
// events are sorted; of each event the lanes of its members' own roles are kept.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/link/link.h"

namespace rehearse::link {

class StepClocks {
 public:
  /// `linked` needs its lanes and events (LinkedRole::lane_ops, OrderedProgram::events) and must
  /// outlive this object. `lag`: the largest lag that will be asked about. Throws ProgramError that
  /// prints the cycle when ops wait for each other.
  StepClocks(const OrderedProgram& linked, int lag);

  /// Steps [0, unrolled_steps()) were sorted. The clocks of the last most_shift() steps may be
  /// incomplete.
  int unrolled_steps() const { return unrolled_steps_; }
  /// The largest shift of any op.
  int most_shift() const { return most_shift_; }
  /// The last step with complete clocks: its ops have the same predecessors as in any later step.
  int steady() const { return unrolled_steps_ - 1 - most_shift_; }
  /// (step, event), each after everything it waits for.
  const std::vector<std::pair<int, Id>>& sorted() const { return sorted_; }

  /// Entries of a role's clock: one per in-order lane, one per op of an arrival lane.
  std::size_t width(Id role) const { return first_[role + 1] - first_[role]; }
  /// The entry of a role's clock that counts the op's lane (or, on an arrival lane, the op itself).
  std::uint32_t entry(Id role, Id op) const { return places_[role][op].entry; }
  /// The op's number on its lane, from 1, over all steps. Once the instance of `step` has ended,
  /// the clock's entry is at least this number.
  std::uint32_t number(Id role, Id op, int step) const {
    const Place& place = places_[role][op];
    return place.first + static_cast<std::uint32_t>(step) * place.length;
  }
  /// Whether `clock`, of this role, says that the instance of `step` has ended.
  bool ended(const std::uint32_t* clock, Id role, Id op, int step) const {
    return clock[entry(role, op)] >= number(role, op, step);
  }

  /// The role's clock of what the op itself waits for, without the waits of the other members of
  /// its rendezvous: a real collective reads and writes as soon as its own rank has issued it. The
  /// pointer is valid until the next call.
  const std::uint32_t* clock_at_start(Id role, Id op, int step);
  /// Indices into the op's `after` of waits that its lane order and its other waits imply. Never
  /// throttles.
  std::vector<std::size_t> implied_waits(Id role, Id op, int step);

  /// Calls f(role, op, step) for everything the op waits for, by lane order and by `after`.
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
  /// Raises `into`, a clock of this role, to the one after this op's instance has ended.
  void join_end(Id role, Id op, int step, std::vector<std::uint32_t>& into) const;
  /// The op before this one on its lane and the step that it serves; (0, none) if there is none.
  std::pair<int, Id> lane_predecessor(Id role, Id op, int step) const {
    const Place& place = places_[role][op];
    const int served = step - place.lag;
    if (served >= 0 && served < unrolled_steps_) return {served, place.previous};
    return first_steps_predecessor(role, op, step);
  }
  /// The same where the first or last steps lack the op before it.
  std::pair<int, Id> first_steps_predecessor(Id role, Id op, int step) const;
  std::size_t node(int step, Id event) const {
    return static_cast<std::size_t>(step) * linked_.events.size() + event;
  }
  /// Where the clocks before an event are, one after the other for the roles of its members.
  std::size_t kept(int step, Id event) const {
    return static_cast<std::size_t>(step) * kept_.back() + kept_[event];
  }
  /// The role's clock before an event in which it takes part.
  const std::uint32_t* clock(Id role, int step, Id event) const;
  [[noreturn]] void report_deadlock(const std::vector<std::uint32_t>& missing) const;

  /// An op's place on its lane. An op of an arrival lane is ordered only after itself.
  struct Place {
    std::uint32_t entry = 0;   // of its lane in a clock
    std::uint32_t first = 1;   // its number in step 0
    std::uint32_t length = 1;  // ops of the lane
    std::uint32_t at = 0;      // its position on the lane
    Id previous = none;        // the op before it, which serves the step `lag` steps before its own
    int lag = 1;
  };

  const OrderedProgram& linked_;
  std::vector<std::vector<Place>> places_ = {};  // [role][op]
  std::vector<std::uint32_t> first_ = {0};       // [role]: of its entries in a clock of all roles
  std::vector<std::size_t> kept_ = {0};          // [event]: offset of its clocks within a step
  int most_shift_ = 0, unrolled_steps_ = 0;
  std::vector<std::uint32_t> clocks_ = {};  // [step][event][member][entry]: before it starts
  std::vector<std::pair<int, Id>> sorted_ = {};
  std::vector<std::uint32_t> local_ = {};  // scratch of clock_at_start() and implied_waits()
};

}  // namespace rehearse::link
