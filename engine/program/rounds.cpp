#include "engine/program/rounds.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/errors.h"

namespace rehearse::program {
void check_rounds(const Program& program, const Role& role) {
  const Round& round = role.round;
  const auto refuse = [&](Id op, const char* why) {
    throw ProgramError(fmt::format("{}: {}\n> {}", role.name, why, to_text(program, role, op)));
  };
  if (round.steps == 0) {
    for (Id o = 0; o < role.ops.size(); ++o)
      if (says_in_time(role.ops[o])) refuse(o, "in_time needs a role with rounds");
    return;
  }
  if (round.steps < 0 || !(round.deadline > 0) || !std::isfinite(round.deadline))
    throw ProgramError(
        fmt::format("{}: a round has at least one step and a deadline above 0 s, "
                    "not {} steps and {} s",
                    role.name, round.steps, round.deadline));
  if (role.free_running)
    throw ProgramError(fmt::format("{}: a free-running role has no rounds", role.name));
  Id lane = none;
  for (Id o = 0; o < role.ops.size(); ++o) {
    const Op& op = role.ops[o];
    if (op.shift != 0) refuse(o, "in a role with rounds, all ops serve the same step");
    if (stops(op)) {
      if (lane == none) lane = op.lane;
      if (op.lane != lane || role.lanes[lane].order != Order::in_order)
        refuse(o, "what a rank that gives up does not do must be on one lane, in order");
    }
    if (says_in_time(op)) {
      if (op.lane != lane || op.when.every % round.steps != 0)
        refuse(o, "in_time follows the passes and updates of a round on their lane, at its end");
      const Ref* share = find(op, Slot::target);
      if (share == nullptr || elements_of(program, role, *share) != 1 ||
          role.storages[role.views[share->view].storage].dtype != DType::f32)
        refuse(o, "the target of in_time is one f32");
    }
    // What the host does for the ops of a step is no part of the method.
    if (stops(op) || std::holds_alternative<Issue>(op.work)) continue;
    if (op.when.every % round.steps != 0)
      refuse(o, "in a role with rounds, others can wait for an op at the end of a round only");
  }
}

}  // namespace rehearse::program
