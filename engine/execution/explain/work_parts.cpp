#include "engine/execution/explain/work_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/execution/trace/chrome_trace.h"

namespace rehearse::execution {
namespace {

/// The order of passes in a step.
int turn_of(program::Pass pass) {
  switch (pass) {
    case program::Pass::forward:
      return 0;
    case program::Pass::recompute:
      return 1;
    case program::Pass::backward:
    case program::Pass::backward_input:
      return 2;
    case program::Pass::backward_weight:
      return 3;
  }
  return 3;
}

}  // namespace

Id compute_lane_of(const program::Role& role) {
  for (const program::Op& op : role.ops)
    if (std::holds_alternative<program::Compute>(op.work)) return op.lane;
  return none;
}

std::string WorkParts::axes_of(Id id) const {
  const program::Channel& channel = linked_.program.channels[id];
  const auto& mesh = linked_.program.mesh;
  if (!channel.group.colour.empty()) return channel.name;
  std::vector<std::string> names;
  for (std::size_t a = 0; a < mesh.size(); ++a)
    if ((channel.group.axes >> a & 1U) != 0 && mesh[a].size > 1) names.push_back(mesh[a].name);
  return names.empty() ? channel.name : fmt::format("{}", fmt::join(names, "+"));
}

std::string WorkParts::axes_between(Id role, Id peer) const {
  Id a = linked_.program.roles[role].ranks.front(), b = linked_.program.roles[peer].ranks.front();
  std::vector<std::string> names;
  const auto& mesh = linked_.program.mesh;
  for (std::size_t i = mesh.size(); i-- > 0;) {
    const auto size = static_cast<Id>(mesh[i].size);
    if (a % size != b % size) names.insert(names.begin(), mesh[i].name);
    a /= size, b /= size;
  }
  if (a != b || names.empty()) return "server";
  return fmt::format("{}", fmt::join(names, "+"));
}

WorkPart WorkParts::part_of(const TraceLabels& labels, Id role, Id op) const {
  const program::Work& work = linked_.program.roles[role].ops[op].work;
  const auto message = [&](Id peer) {
    return WorkPart{PartKind::communication, axes_between(role, peer) + " send"};
  };
  return std::visit(
      program::overloaded{
          [&](const program::Compute&) {
            return WorkPart{PartKind::compute, labels.name(role, op)};
          },
          [&](const program::Kernel&) {
            return WorkPart{PartKind::kernel, labels.name(role, op)};
          },
          [&](const program::Update&) {
            return WorkPart{PartKind::optimizer, labels.name(role, op)};
          },
          [&](const program::Collective& c) {
            return WorkPart{PartKind::communication,
                            fmt::format("{} {}", axes_of(c.channel), labels.name(role, op))};
          },
          [&](const program::Send& s) { return message(s.peer); },
          [&](const program::Recv& r) { return message(r.peer); },
          [&](const program::Put& p) { return message(p.peer); },
          [&](const program::Take& t) {
            return WorkPart{PartKind::communication, fmt::format("{} take", axes_of(t.channel))};
          },
          [&](const program::Copy&) {
            const program::Role& whose = linked_.program.roles[role];
            const program::Ref& from = whose.ops[op].refs.front();
            // A copy of state is a snapshot; other copies bring gradients, weights and activations
            // to and fro.
            if (whose.storages[whose.views[from.view].storage].life == program::Life::state)
              return WorkPart{PartKind::checkpoint, labels.name(role, op)};
            if (std::ranges::all_of(whose.ops[op].refs, [&](const program::Ref& ref) {
                  return whose.storages[whose.views[ref.view].storage].place ==
                         program::Place::device;
                }))
              return WorkPart{PartKind::kernel, labels.name(role, op)};
            return WorkPart{PartKind::host_copy, whose.lanes[whose.ops[op].lane].name + " copy"};
          },
          [&](const program::Save&) {
            return WorkPart{PartKind::checkpoint, labels.name(role, op)};
          },
          [&](const program::Pause&) {
            const program::Role& whose = linked_.program.roles[role];
            return WorkPart{PartKind::host, whose.lanes[whose.ops[op].lane].name + " pause"};
          },
          [&](const program::Issue&) {
            return WorkPart{PartKind::host, "issuing kernels"};
          }},
      work);
}

WorkParts::WorkParts(const link::OrderedProgram& linked, const model::ModelSpec& model)
    : linked_(linked) {
  const TraceLabels labels(linked, model);
  std::vector<int> turn;  // by part: its place among the passes
  for (Id r = 0; r < linked.program.roles.size(); ++r) {
    auto& ids = of_.emplace_back();
    for (Id o = 0; o < linked.program.roles[r].ops.size(); ++o) {
      const WorkPart part = part_of(labels, r, o);
      const auto known = std::find(all_.begin(), all_.end(), part);
      ids.push_back(static_cast<Id>(known - all_.begin()));
      if (known != all_.end()) continue;
      all_.push_back(part);
      const auto* pass = std::get_if<program::Compute>(&linked.program.roles[r].ops[o].work);
      turn.push_back(pass == nullptr ? 0 : turn_of(pass->pass));
    }
  }
  all_.push_back({PartKind::waiting, "for other ranks"});
  turn.push_back(0);
  std::vector<Id> order(all_.size()), place(all_.size());
  std::iota(order.begin(), order.end(), Id{0});
  std::ranges::stable_sort(order, {}, [&](Id i) { return std::pair(all_[i].kind, turn[i]); });
  std::vector<WorkPart> sorted;
  for (const Id i : order) {
    place[i] = static_cast<Id>(sorted.size());
    sorted.push_back(all_[i]);
  }
  all_ = std::move(sorted);
  for (auto& ids : of_)
    for (Id& id : ids) id = place[id];
  for (Id i = 0; i < all_.size(); ++i)
    if (all_[i].kind == PartKind::host) host_ = i;
}

}  // namespace rehearse::execution
