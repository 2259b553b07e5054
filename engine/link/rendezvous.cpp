#include "engine/link/rendezvous.h"

#include <algorithm>

namespace rehearse::link {

Rendezvous rendezvous_of(const OrderedProgram& linked, Id channel, std::span<const RoleOp> event) {
  const program::Program& p = linked.program;
  Rendezvous out;
  std::vector<Id> member_of(p.roles.size(), none);
  for (Id m = 0; m < event.size(); ++m) {
    member_of[event[m].role] = m;
    out.group.emplace_back(p.roles[event[m].role].ranks.size(), none);
  }
  for (const auto& ranks : groups_of(p, p.channels[channel])) {
    bool used = false;
    for (Id rank : ranks) {
      const Id m = member_of[linked.role_of[rank]];
      if (m == none) continue;
      out.group[m][linked.place_of[rank]] = out.groups;
      if (!used) out.lowest.push_back(rank), out.lowest_member.push_back(m);
      used = true;
    }
    out.groups += used;
  }
  if (event.size() != 1 || out.groups == 0) return out;
  const auto& group = out.group[0];
  const auto places = static_cast<Id>(group.size());
  if (places % out.groups != 0) return out;
  Id inner = 0;  // ends as the last place before the first group comes again
  while (inner + 1 < places && group[inner + 1] != group[0]) ++inner;
  out.inner = places == out.groups ? places : inner + 1;
  out.size = places / out.groups;
  if (out.groups % out.inner != 0) return out.size = 0, out;
  out.outer = out.groups / out.inner;
  for (Id i = 0; i < places; ++i)
    if (group[i] != i / (out.size * out.inner) * out.inner + i % out.inner)
      return out.size = 0, out;
  return out;
}

Gathering gathering_of(const OrderedProgram& linked, const program::Collective& work,
                       std::span<const RoleOp> event, std::span<const Id> device_of) {
  const auto ranks_of = [&](Id member) -> const std::vector<Id>& {
    return linked.program.roles[event[member].role].ranks;
  };
  Gathering out{.who = rendezvous_of(linked, work.channel, event)};
  const Id groups = out.who.groups;
  out.members.resize(groups), out.devices.resize(groups), out.roots.resize(groups, work.distance);
  std::size_t ranks = 0;
  for (Id m = 0; m < event.size(); ++m) ranks += ranks_of(m).size();
  for (auto& members : out.members) members.reserve(ranks / groups);
  for (Id m = 0; m < event.size(); ++m)
    for (Id i = 0; i < out.who.group[m].size(); ++i)
      if (const Id g = out.who.group[m][i]; g != none)
        out.members[g].push_back({ranks_of(m)[i], {m, i}});
  for (Id g = 0; g < groups; ++g) {
    std::sort(out.members[g].begin(), out.members[g].end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    out.devices[g].reserve(out.members[g].size());
    for (const auto& [rank, where] : out.members[g]) {
      if (work.root != none && event[where.role].role == work.root)
        out.roots[g] = static_cast<int>(out.devices[g].size());
      out.devices[g].push_back(device_of[rank]);
    }
  }
  return out;
}

RanksThatMeet::RanksThatMeet(const OrderedProgram& linked)
    : linked_(linked), groups_(linked.program.channels.size()) {}

const RanksThatMeet::Groups& RanksThatMeet::groups(Id channel) {
  std::optional<Groups>& known = groups_[channel];
  if (!known) {
    known.emplace();
    known->members = groups_of(linked_.program, linked_.program.channels[channel]);
    known->of_rank.assign(static_cast<std::size_t>(linked_.program.world_size), none);
    for (Id group = 0; group < known->members.size(); ++group)
      for (const Id rank : known->members[group]) known->of_rank[rank] = group;
  }
  return *known;
}

std::vector<Id> RanksThatMeet::of(const program::Work& work, Id rank) {
  const auto with = [&](Id peer) {
    const Id other = linked_.program.roles[peer].ranks[linked_.place_of[rank]];
    return std::vector<Id>{std::min(rank, other), std::max(rank, other)};
  };
  if (const auto* send = std::get_if<program::Send>(&work)) return with(send->peer);
  if (const auto* recv = std::get_if<program::Recv>(&work)) return with(recv->peer);
  const auto* collective = std::get_if<program::Collective>(&work);
  if (collective == nullptr) return {};
  const Groups& all = groups(collective->channel);
  const Id group = all.of_rank[rank];
  return group == none ? std::vector<Id>{rank} : all.members[group];
}

}  // namespace rehearse::link
