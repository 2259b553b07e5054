#include "sim/group_exchanges.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "engine/costs/network/adding.h"

namespace rehearse::sim {
namespace {

/// The lane of a role's op.
Id lane_of(const program::Program& program, link::RoleOp who) {
  return program.roles[who.role].ops[who.op].lane;
}

/// Removes from `mine` what is not in `other`. Both are sorted.
void keep_common(std::vector<Id>& mine, const std::vector<Id>& other) {
  std::vector<Id> both;
  std::set_intersection(mine.begin(), mine.end(), other.begin(), other.end(),
                        std::back_inserter(both));
  mine = std::move(both);
}

/// Fits the duration to what the profile has of it, if anything: that is more exact than
/// bandwidths. The links, and so the contention, stay as they are.
void stretch(GroupExchange& exchange, std::optional<double> measured) {
  if (!measured) return;
  if (exchange.seconds > 0)
    exchange.stretch = *measured / exchange.seconds, exchange.extra = 0;
  else
    exchange.extra = *measured;
}

}  // namespace

GroupExchanges::GroupExchanges(const link::OrderedProgram& linked, const costs::Costs& costs,
                               const cluster::Cluster& cluster, SharedNetwork& network, bool chunk)
    : linked_(linked),
      costs_(costs),
      cluster_(cluster),
      network_(network),
      chunk_(chunk),
      events_(linked.events.size()),
      holders_(cluster.links().size()) {
  Id base = 0;
  for (const program::Role& role : linked.program.roles) {
    lane_base_.push_back(base);
    base += static_cast<Id>(role.ranks.size() * role.lanes.size());
  }
  lane_base_.push_back(base);
  for (Id event = 0; event < linked.events.size(); ++event) add_event(event);
  find_uncontended();
}

Id GroupExchanges::lane_id(Id role, Id place, Id lane) const {
  return lane_base_[role] + place * static_cast<Id>(linked_.program.roles[role].lanes.size()) +
         lane;
}

Id GroupExchanges::add_group(std::vector<Id> ranks) {
  GroupMembers group{.ranks = std::move(ranks)};
  for (const Id rank : group.ranks) group.devices.push_back(costs_.rank_to_device()[rank]);
  groups_.push_back(std::move(group));
  return static_cast<Id>(groups_.size() - 1);
}

Id GroupExchanges::collective_cohort(Id channel, std::span<const link::RoleOp> event) {
  std::set<Id> roles;
  for (const link::RoleOp who : event) roles.insert(who.role);
  const auto [found, added] =
      cohort_of_.try_emplace(CohortKey{channel, {roles.begin(), roles.end()}}, cohorts_.size());
  if (!added) return found->second;
  GroupSet cohort;
  cohort.local_of_rank.assign(at(linked_.program.world_size), none);
  for (std::vector<Id>& group : groups_of(linked_.program, linked_.program.channels[channel])) {
    if (std::none_of(group.begin(), group.end(),
                     [&](Id rank) { return roles.contains(linked_.role_of[rank]); }))
      continue;
    for (const Id rank : group) cohort.local_of_rank[rank] = static_cast<Id>(cohort.groups.size());
    cohort.groups.push_back(add_group(std::move(group)));
  }
  cohorts_.push_back(std::move(cohort));
  return found->second;
}

Id GroupExchanges::pair_cohort(Id sender, Id receiver) {
  const auto [found, added] =
      cohort_of_.try_emplace(CohortKey{none, {sender, receiver}}, cohorts_.size());
  if (!added) return found->second;
  GroupSet cohort;
  cohort.local_of_rank.assign(at(linked_.program.world_size), none);
  const std::vector<Id>& from = linked_.program.roles[sender].ranks;
  const std::vector<Id>& to = linked_.program.roles[receiver].ranks;
  for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    for (const Id rank : {from[i], to[i]})
      cohort.local_of_rank[rank] = static_cast<Id>(cohort.groups.size());
    cohort.groups.push_back(add_group({from[i], to[i]}));
  }
  cohorts_.push_back(std::move(cohort));
  return found->second;
}

const Exchange* GroupExchanges::single(double bytes) {
  const auto [found, added] = single_of_.try_emplace(bytes, nullptr);
  if (added) found->second = &exchanges_.emplace_back(bytes);
  return found->second;
}

const Exchange* GroupExchanges::schedule(const program::Collective& work,
                                         program::Algorithm algorithm, std::int64_t elements,
                                         program::DType wire, const GroupMembers& group, int root) {
  // Groups with the same pattern of members over nodes and the same wiring share one schedule.
  std::vector<Id> pattern;
  pattern.reserve(group.devices.size());
  std::unordered_map<Id, Id> seen;
  for (const Id device : group.devices)
    pattern.push_back(
        seen.try_emplace(cluster_.devices()[device].node, static_cast<Id>(seen.size()))
            .first->second);
  costs::Wiring wiring = costs::wiring_of(cluster_, group.devices);
  const auto [found, added] = exchange_of_.try_emplace(
      ExchangeKey{work.move, algorithm, elements, wire, root, std::move(pattern), wiring}, nullptr);
  if (!added) return found->second;
  auto schedule = costs::schedule_on(cluster_, work.move, algorithm, elements, wire, group.devices,
                                     root, std::move(wiring));
  found->second = &(chunk_ || algorithm == program::Algorithm::double_tree
                        ? exchanges_.emplace_back(std::move(schedule), size_of(wire))
                        : exchanges_.emplace_back(Exchange::joined(*schedule, size_of(wire))));
  return found->second;
}

GroupExchange GroupExchanges::transfer(Id group, std::int64_t bytes) {
  GroupExchange exchange = make_exchange(group, single(static_cast<double>(bytes)));
  const std::vector<Id>& devices = groups_[group].devices;
  stretch(exchange, costs_.measured_transfer(devices[0], devices[1], bytes));
  return exchange;
}

GroupExchange GroupExchanges::collective_exchange(const program::Collective& work,
                                                  program::Algorithm algorithm,
                                                  const link::LinkedOp& facts, Id group) {
  const GroupMembers& who = groups_[group];
  const auto rooted = std::find_if(who.ranks.begin(), who.ranks.end(),
                                   [&](Id rank) { return linked_.role_of[rank] == work.root; });
  const int root =
      rooted == who.ranks.end() ? work.distance : static_cast<int>(rooted - who.ranks.begin());
  const std::int64_t size = facts.elements * size_of(facts.wire);
  const auto bytes = static_cast<double>(size);
  const auto measured = costs_.measured_collective(work.move, who.devices, size);
  if (who.ranks.size() < 2 || !costs::library_runs(cluster_, algorithm, work.move)) {
    GroupExchange exchange =
        make_exchange(group, schedule(work, algorithm, facts.elements, facts.wire, who, root));
    exchange.adding =
        costs::adding_seconds(cluster_, work.move, algorithm, bytes, who.devices, root);
    exchange.seconds = std::max(exchange.seconds, exchange.adding);
    stretch(exchange, measured);
    return exchange;
  }
  const costs::LibraryCollective run =
      costs::library_collective(cluster_, work.move, algorithm, bytes, who.devices, root);
  const Exchange& what =
      exchanges_.emplace_back(Exchange::of_library(run, static_cast<int>(who.devices.size())));
  GroupExchange exchange = make_exchange(group, &what);
  exchange.extra = run.latency;
  stretch(exchange, measured);
  return exchange;
}

Id GroupExchanges::route(const GroupExchange& exchange, const Hop& hop) const {
  const std::vector<Id>& devices = groups_[exchange.group].devices;
  if (hop.sum != none) return network_.route(exchange.schedule->sum_links(hop.sum), devices);
  return network_.route(devices[at(hop.from)], devices[at(hop.to)], hop.each());
}

/// Registers the routes and computes how long the exchange takes when nothing contends.
GroupExchange GroupExchanges::make_exchange(Id group, const Exchange* schedule) {
  GroupExchange exchange{.group = group, .schedule = schedule};
  const GroupMembers& who = groups_[group];
  std::vector<double> ready(who.ranks.size(), 0);
  std::vector<double> next;
  std::vector<Hop> hops;
  for (int r = 0; r < schedule->rounds(); ++r) {
    schedule->round(r, -1, hops);
    next = ready;
    for (const Hop& hop : hops) {
      const auto from = static_cast<std::size_t>(hop.from);
      const auto to = static_cast<std::size_t>(hop.to);
      const Id route = this->route(exchange, hop);
      if (route == none) continue;
      const double end = std::max(ready[from], ready[to]) +
                         hop.latencies * network_.latency(route) +
                         hop.bytes / network_.bandwidth(route);
      next[from] = std::max(next[from], end);
      next[to] = std::max(next[to], end);
    }
    ready.swap(next);
  }
  exchange.seconds = *std::max_element(ready.begin(), ready.end());
  if (who.ranks.size() > 1) exchange.extra = cluster_.library().launch.value;
  return exchange;
}

void GroupExchanges::add_event(Id event) {
  const std::span<const link::RoleOp> members = linked_.events[event];
  const link::RoleOp who = members.front();
  const program::Op& op = linked_.program.roles[who.role].ops[who.op];
  link::LinkedOp facts;  // of the member with most bytes; a member of a reduction may have none
  for (const link::RoleOp member : members)
    if (const link::LinkedOp& one = linked_.roles[member.role].ops[member.op];
        one.bytes >= facts.bytes)
      facts = one;
  if (std::holds_alternative<program::Put>(op.work)) return add_put(who.role, who.op);
  const auto* collective = std::get_if<program::Collective>(&op.work);
  if (collective == nullptr && members.size() != 2) return;  // local work

  program::Algorithm algorithm = program::Algorithm::automatic;
  Id cohort = none;
  Id root = none;
  int distance = 0, move = -1;
  std::map<Id, Id> lanes;  // by role
  for (const link::RoleOp member : members) lanes[member.role] = lane_of(linked_.program, member);
  if (collective != nullptr) {
    algorithm = costs_.algorithm(who.role, who.op);
    cohort = collective_cohort(collective->channel, members);
    root = collective->root, distance = collective->distance;
    move = static_cast<int>(collective->move);
  } else {
    const bool first_sends = std::holds_alternative<program::Send>(op.work);
    cohort = pair_cohort(members[first_sends ? 0 : 1].role, members[first_sends ? 1 : 0].role);
  }
  std::vector<Id> lane_key;
  lane_key.reserve(lanes.size());
  for (const auto& [role, lane] : lanes) lane_key.push_back(lane);
  const std::int64_t size = collective != nullptr ? facts.elements : facts.bytes;
  const auto [found, added] = class_of_.try_emplace(
      ClassKey{cohort, lane_key, move, algorithm, size, facts.wire, root, distance},
      group_exchanges_.size());
  events_[event] = {.cohort = cohort, .first = found->second};
  if (!added) return;
  for (const Id group : cohorts_[cohort].groups) {
    group_exchanges_.push_back(collective == nullptr
                                   ? transfer(group, facts.bytes)
                                   : collective_exchange(*collective, algorithm, facts, group));
    std::vector<Id> holders;
    for (const Id rank : groups_[group].ranks)
      holders.push_back(
          lane_id(linked_.role_of[rank], linked_.place_of[rank], lanes.at(linked_.role_of[rank])));
    occupy(group_exchanges_.back(), std::move(holders));
  }
}

void GroupExchanges::add_put(Id role, Id op) {
  const program::Put& put = std::get<program::Put>(linked_.program.roles[role].ops[op].work);
  const std::vector<Id>& from = linked_.program.roles[role].ranks;
  const std::vector<Id>& to = linked_.program.roles[put.peer].ranks;
  puts_[{role, op}] = group_exchanges_.size();
  const Id lane = linked_.program.roles[role].ops[op].lane;
  for (Id i = 0; i < from.size(); ++i) {
    for (Id k = 0; k < to.size(); ++k) {
      if (put.reply == none && k != i % to.size()) continue;
      group_exchanges_.push_back(
          transfer(add_group({from[i], to[k]}), linked_.roles[role].ops[op].bytes));
      // Answers do not keep a lane busy, so they may overlap.
      occupy(group_exchanges_.back(),
             put.reply == none ? std::vector{lane_id(role, i, lane)} : std::vector<Id>{});
    }
  }
}

const GroupExchange& GroupExchanges::put(Id role, Id op, Id from_place, Id to_place) const {
  const program::Put& work = std::get<program::Put>(linked_.program.roles[role].ops[op].work);
  const std::size_t peers = linked_.program.roles[work.peer].ranks.size();
  const std::size_t first = puts_.at({role, op});
  return group_exchanges_[work.reply == none ? first + from_place
                                             : first + from_place * peers + to_place];
}

/// Notes on each link of the exchange which lanes take part in it.
void GroupExchanges::occupy(const GroupExchange& exchange, std::vector<Id> lanes) {
  std::sort(lanes.begin(), lanes.end());
  std::set<Id> links;
  std::vector<Hop> hops;
  for (int r = 0; r < exchange.schedule->rounds(); ++r) {
    exchange.schedule->round(r, -1, hops);
    for (const Hop& hop : hops) {
      const Id route = this->route(exchange, hop);
      if (route == none) continue;
      for (const Id link : network_.links(route)) links.insert(link);
    }
  }
  for (const Id link : links) {
    Holders& holders = holders_[link];
    if (!holders.used)
      holders = {.used = true, .lanes = lanes};
    else
      keep_common(holders.lanes, lanes);
  }
}

void GroupExchanges::find_uncontended() {
  for (GroupExchange& exchange : group_exchanges_) exchange.uncontended = serial(exchange);
}

/// Whether the exchange is alone (see the header) and does not contend with itself: its hops on one
/// link are in different rounds, and one member takes part in all of them, so they run one after
/// the other.
bool GroupExchanges::serial(const GroupExchange& exchange) const {
  struct Use {
    int round = -1;
    std::vector<Id> members = {};
  };
  std::unordered_map<Id, Use> uses;
  std::vector<Hop> hops;
  for (int r = 0; r < exchange.schedule->rounds(); ++r) {
    exchange.schedule->round(r, -1, hops);
    for (const Hop& hop : hops) {
      const auto from = static_cast<Id>(hop.from);
      const auto to = static_cast<Id>(hop.to);
      const Id route = this->route(exchange, hop);
      if (route == none) continue;
      std::vector<Id> members = {std::min(from, to), std::max(from, to)};
      for (const Id link : network_.links(route)) {
        if (holders_[link].lanes.empty()) return false;
        Use& use = uses[link];
        if (use.round == r) return false;
        if (use.round < 0)
          use.members = members;
        else
          keep_common(use.members, members);
        use.round = r;
        if (use.members.empty()) return false;
      }
    }
  }
  return true;
}

}  // namespace rehearse::sim
