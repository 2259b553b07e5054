#include "runtime/executor/lanes/task_lanes.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "engine/link/hazards.h"
#include "runtime/executor/lanes/turnstile.h"

namespace rehearse::runtime {
namespace {

Task task_of(const program::Role& role, Id op) {
  const program::Work& work = role.ops[op].work;
  return {.op = op,
          .meets = meets(work),
          .answers = std::holds_alternative<program::Take>(work),
          .host = on_host(work),
          .computes = std::holds_alternative<program::Compute>(work),
          .tells = std::holds_alternative<program::Update>(work) &&
                   find(role.ops[op], program::Slot::norm) != nullptr};
}

}  // namespace

bool on_host(const program::Work& work) {
  return std::holds_alternative<program::Pause>(work) ||
         std::holds_alternative<program::Save>(work);
}

std::vector<TaskLane> lanes_of(const link::OrderedProgram& linked, Id r) {
  const program::Role& role = linked.program.roles[r];
  std::vector<std::vector<link::Wait>> waits(role.ops.size());
  for (Id o = 0; o < role.ops.size(); ++o) {
    const auto of = linked.roles[r].waits.of(o);
    waits[o].assign(of.begin(), of.end());
  }
  for (const link::Hazard& hazard : link::hazard_list(linked.program, role)) {
    // No wait is needed when both ops are on the same lane, which keeps the order already.
    std::vector<link::Wait>& list = waits[hazard.op];
    const bool known = std::any_of(list.begin(), list.end(), [&](const link::Wait& wait) {
      return wait.op == hazard.on && wait.lag <= hazard.lag;
    });
    if (!known && role.ops[hazard.op].lane != role.ops[hazard.on].lane)
      list.push_back({.op = hazard.on, .lag = hazard.lag});
  }
  std::vector<TaskLane> lanes;
  for (const program::Lane& lane : role.lanes)
    lanes.push_back({.name = lane.name, .order = lane.order});
  for (Id op = 0; op < role.ops.size(); ++op) {
    Task& task = lanes[role.ops[op].lane].tasks.emplace_back(task_of(role, op));
    task.shift = role.ops[op].shift;
    task.waits = std::move(waits[op]);
  }
  return lanes;
}

std::vector<TaskLane> lanes_of(const link::OrderedProgram& linked, Id r,
                               const std::vector<bool>& wanted) {
  const program::Role& role = linked.program.roles[r];
  // Within one step a lane runs its ops by (shift, position), because an op with a larger shift is
  // issued in a later iteration.
  std::vector<std::vector<Id>> order(role.lanes.size());
  for (std::size_t i = 0; i < role.ops.size(); ++i)
    order[role.ops[i].lane].push_back(static_cast<Id>(i));
  std::vector<Id> preceding(role.ops.size(), none);
  std::vector<TaskLane> lanes;
  for (std::size_t lane = 0; lane < order.size(); ++lane) {
    std::stable_sort(order[lane].begin(), order[lane].end(),
                     [&](Id a, Id b) { return role.ops[a].shift < role.ops[b].shift; });
    for (std::size_t i = 1; i < order[lane].size(); ++i)
      preceding[order[lane][i]] = order[lane][i - 1];
    lanes.push_back({.name = role.lanes[lane].name});
  }
  for (std::size_t lane = 0; lane < order.size(); ++lane)
    for (const Id op : order[lane]) {
      if (!wanted[op]) continue;
      Task task = task_of(role, op);
      std::vector<bool> seen(role.ops.size());
      std::vector<Id> stack = {op};
      while (!stack.empty()) {
        const Id at = stack.back();
        stack.pop_back();
        std::vector<Id> earlier;
        if (preceding[at] != none) earlier.push_back(preceding[at]);
        for (const link::Wait& wait : linked.roles[r].waits.of(at))
          if (wait.lag == 0) earlier.push_back(wait.op);
        for (const Id e : earlier) {
          if (seen[e]) continue;
          seen[e] = true;
          if (!wanted[e])
            stack.push_back(e);
          else if (role.ops[e].lane != role.ops[op].lane)
            task.waits.push_back({.op = e});
        }
      }
      lanes[lane].tasks.push_back(std::move(task));
    }
  return lanes;
}

}  // namespace rehearse::runtime
