#include "engine/costs/device/beside.h"

#include <algorithm>
#include <map>

namespace rehearse::costs {

std::vector<Beside> passes_beside(const program::Role& role) {
  std::map<Id, std::vector<Id>> of_pass;
  Id compute = none, last = none;  // the lane of passes; the last pass
  // By op and by lane: the last op of the compute lane for whose end it waits, plus one.
  std::vector<Id> awaited(role.ops.size(), 0), of_lane(role.lanes.size(), 0);
  std::vector<Id> waiting = {};  // collectives that may run beside the next pass
  for (Id o = 0; o < role.ops.size(); ++o) {
    const program::Op& op = role.ops[o];
    const bool pass = std::holds_alternative<program::Compute>(op.work);
    if (pass && compute == none) compute = op.lane;
    Id& seen = of_lane[op.lane];
    for (const program::After& after : op.after) {
      if (after.lag > 0 || after.op >= o) continue;
      const Id lane = role.ops[after.op].lane;
      seen = std::max(seen, lane == compute ? after.op + 1 : awaited[after.op]);
      if (op.lane == compute)
        std::erase_if(waiting, [&](Id c) { return role.ops[c].lane == lane && c <= after.op; });
    }
    awaited[o] = seen;
    const bool collective = std::holds_alternative<program::Collective>(op.work);
    if (op.lane != compute && collective && op.when.until == 0) {
      if (last != none && seen <= last)
        of_pass[last].push_back(o);
      else
        waiting.push_back(o);
    } else if (pass) {
      for (const Id c : waiting) of_pass[o].push_back(c);
      waiting.clear();
      last = o;
    }
  }
  std::vector<Beside> out;
  for (auto& [pass, collectives] : of_pass) out.push_back({pass, std::move(collectives)});
  return out;
}

double channels_needed(const program::Program& program, Id role, Id channel,
                       const cluster::Cluster& cluster, std::span<const Id> rank_to_device) {
  const Id first_rank = program.roles[role].ranks[0];
  const Id first = rank_to_device[first_rank], node = cluster.devices()[first].node;
  Id beside = none;  // another device of the node
  int in_node = 0;
  for (Id d = 0; d < cluster.devices().size(); ++d)
    if (cluster.devices()[d].node == node) ++in_node, beside = d == first ? beside : d;
  double part = 1;
  for (const std::vector<Id>& group : program::groups_of(program, program.channels[channel])) {
    if (std::ranges::find(group, first_rank) == group.end() || beside == none) continue;
    const auto here = std::ranges::count_if(
        group, [&](Id rank) { return cluster.devices()[rank_to_device[rank]].node == node; });
    if (static_cast<std::size_t>(here) == group.size()) continue;
    part = std::min(1.0, cluster.networks()[node].value * static_cast<double>(here) / in_node /
                             cluster.bandwidth(first, beside).value);
  }
  return part;
}

}  // namespace rehearse::costs
