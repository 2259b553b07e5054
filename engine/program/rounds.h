// When a rank gives up a round (program::Round). Every executor asks here, so that all decide by
// the same rule, each with its own clock.
#pragma once
#include <cstdint>
#include <variant>

#include "engine/program/program.h"

namespace rehearse::program {

/// Whether the op does nothing on a rank that has given up its round: local work of every step.
inline bool stops(const Op& op) {
  return op.when.every == 1 &&
         (std::holds_alternative<Compute>(op.work) || std::holds_alternative<Kernel>(op.work) ||
          std::holds_alternative<Update>(op.work));
}

/// Whether the op is the kernel that says what the rank counts at the end of a round.
inline bool says_in_time(const Op& op) {
  const auto* kernel = std::get_if<Kernel>(&op.work);
  return kernel != nullptr && kernel->kind == KernelKind::in_time;
}

/// Throws ProgramError unless a rank of the role can give up a round: the ops that stop are on one
/// lane and serve the same step, what others wait for works at the ends of rounds, and `in_time`
/// is computed then. After check_op of all ops.
void check_rounds(const Program& program, const Role& role);

/// The rounds of one rank.
class RoundClock {
 public:
  /// Call it as an op begins, in a step in which the op is due. Returns whether it works. `now`:
  /// called with the first op of a step, returns seconds of any clock.
  template <class Now>
  bool works(const Round& round, const Op& op, std::int64_t step, const Now& now) {
    // The host may be ahead of the device, so what it does for a step begins no round.
    if (std::holds_alternative<Issue>(op.work))
      return !gave_up_ || step / round.steps != step_ / round.steps;
    if (!stops(op)) return true;
    if (step == step_) return !gave_up_;
    // A run that continues in the middle of a round gives it the whole time again.
    const double at = now();
    if (step_ < 0 || step % round.steps == 0) began_ = at;
    step_ = step;
    gave_up_ = late(round, at);
    return !gave_up_;
  }
  /// Between these two, time does not count: a run does other things between steps, a validation
  /// say.
  void pause(double now) { paused_ = now; }
  void go_on(double now) { began_ += now - paused_; }
  /// Whether the rank is past the deadline of the round that it is in.
  bool late(const Round& round, double now) const { return now - began_ > round.deadline; }

 private:
  std::int64_t step_ = -1;  // the last one begun
  double began_ = 0, paused_ = 0;
  bool gave_up_ = false;
};

}  // namespace rehearse::program
