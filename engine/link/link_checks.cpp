#include "engine/link/link_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/link/hazards.h"
#include "engine/program/program_tables.h"

namespace rehearse::link {
namespace {

std::string place(const program::Program& p, Id role, Id op) {
  return fmt::format("{}: {}", p.roles[role].name, to_text(p, p.roles[role], op));
}

/// What all members of a collective must agree on, as text. Only the presence of source and target
/// may differ, for a root or a member that contributes nothing.
std::string signature(const OrderedProgram& linked, Id role, Id o) {
  const auto& c = std::get<program::Collective>(linked.program.roles[role].ops[o].work);
  const LinkedOp& l = linked.roles[role].ops[o];
  const program::When& when = linked.program.roles[role].ops[o].when;
  return fmt::format(
      "{} of {} {} by {}{} in {}", name_of(c.move), l.elements, name_of(l.wire),
      name_of(c.algorithm), c.root == none ? "" : " root " + linked.program.roles[c.root].name,
      when == program::When{}
          ? "every step"
          : fmt::format("steps every={} from={} until={}", when.every, when.from, when.until));
}
bool agree(const OrderedProgram& linked, RoleOp a, RoleOp b) {
  const program::Op &first = linked.program.roles[a.role].ops[a.op],
                    &second = linked.program.roles[b.role].ops[b.op];
  const auto& x = std::get<program::Collective>(first.work);
  const auto& y = std::get<program::Collective>(second.work);
  const LinkedOp &k = linked.roles[a.role].ops[a.op], &l = linked.roles[b.role].ops[b.op];
  return std::tuple(x.move, x.algorithm, x.root, x.distance, k.elements, k.wire) ==
             std::tuple(y.move, y.algorithm, y.root, y.distance, l.elements, l.wire) &&
         first.when == second.when;
}

/// Refuses an all-to-all whose parts would be unequal, or that would overwrite what it still has to
/// send. `bad` throws.
template <class Bad>
void check_all_to_all(const program::Program& p, const program::Role& role, const program::Op& op,
                      std::int64_t members, Bad bad) {
  const program::Ref &source = *find(op, program::Slot::source),
                     &target = *find(op, program::Slot::target);
  const std::int64_t a = elements_of(p, role, source), b = elements_of(p, role, target);
  if (a != b || members == 0 || a % members != 0)
    bad(
        fmt::format("an all-to-all sends as much as it receives, in equal parts: {} and {} "
                    "elements, {} members",
                    a, b, members));
  if (role.views[source.view].storage == role.views[target.view].storage)
    bad("an all-to-all does not work in place");
}

/// Refuses a rotate that is not between values of the ranks' own, or that leads a rank to itself.
template <class Bad>
void check_rotate(const program::Program& p, const program::Role& role, const program::Op& op,
                  std::int64_t members, Bad bad) {
  const auto& c = std::get<program::Collective>(op.work);
  const program::Axes axes = p.channels[c.channel].group.axes;
  const program::Ref *source = find(op, program::Slot::source),
                     *target = find(op, program::Slot::target);
  if (!source || !target || source->layout != target->layout || (source->layout.own & axes) != axes)
    bad("a rotate brings what is each rank's own along its group to another rank");
  if (elements_of(p, role, *source) != elements_of(p, role, *target))
    bad("a rotate receives as much as it sends");
  if (c.distance < 1 || c.distance >= members)
    bad(fmt::format("the distance of a rotate among {} ranks is from 1 to {}", members,
                    members - 1));
  if (role.views[source->view].storage == role.views[target->view].storage)
    bad("a rotate does not work in place");
}

/// Refuses a gather or a scatter that does not move equal parts between its root and the others.
template <class Bad>
void check_parts_of_root(const program::Program& p, Id role, const program::Op& op,
                         std::int64_t members, Bad bad) {
  const auto& c = std::get<program::Collective>(op.work);
  const bool gather = c.move == program::Move::gather, root = role == c.root;
  const program::Ref* part = find(op, gather ? program::Slot::source : program::Slot::target);
  const program::Ref* whole = find(op, gather ? program::Slot::target : program::Slot::source);
  if (c.root == none) bad(fmt::format("a {} needs a root", name_of(c.move)));
  if (root != (whole != nullptr) || (!root && part == nullptr))
    bad(gather ? "a gather brings a part of each member to its root, which alone has a target"
               : "a scatter brings each member a part from its root, which alone has a source");
  if (members == 0) bad(fmt::format("a {} needs groups of equal size", name_of(c.move)));
  if (!root) return;
  const std::int64_t elements = elements_of(p, p.roles[role], *whole);
  if (elements % members != 0 ||
      (part != nullptr && elements_of(p, p.roles[role], *part) * members != elements))
    bad(fmt::format("{} elements are no {} equal parts", elements, members));
}

/// Refuses operands whose layouts or sizes do not fit the collective. `members`: ranks of a group.
void check_collective(const OrderedProgram& linked, Id r, Id o, std::int64_t members) {
  const program::Program& p = linked.program;
  const program::Role& role = p.roles[r];
  const program::Op& op = role.ops[o];
  const auto& c = std::get<program::Collective>(op.work);
  const program::Axes axes = p.channels[c.channel].group.axes;
  const program::Ref* source = find(op, program::Slot::source);
  const program::Ref* target = find(op, program::Slot::target);
  auto bad = [&](const std::string& why) {
    throw ProgramError(fmt::format("role {}: {}\n> {}", role.name, why, to_text(p, role, o)));
  };
  auto has = [&](program::Axes set) { return (set & axes) == axes; };
  auto none_of = [&](program::Axes set) { return (set & axes) == 0; };
  switch (c.move) {
    case program::Move::all_reduce:
      if (!source || !target || !has(source->layout.partial) || !none_of(target->layout.partial))
        bad("an all-reduce turns a partial sum over its group into a copy");
      break;
    case program::Move::reduce_scatter:
      if (!source || !target || !has(source->layout.partial) || !none_of(target->layout.partial) ||
          !has(target->layout.shard))
        bad("a reduce-scatter turns a partial sum over its group into a shard");
      break;
    case program::Move::all_gather:
      if (!source || !target || !has(source->layout.shard) || !none_of(target->layout.shard))
        bad("an all-gather turns a shard over its group into a copy");
      break;
    case program::Move::all_to_all:
      if (!source || !target || !has(source->layout.partial | source->layout.shard) ||
          !none_of(target->layout.partial) || !has(target->layout.shard))
        bad("an all-to-all turns a partial sum or a shard over its group into a shard");
      check_all_to_all(p, role, op, members, bad);
      break;
    case program::Move::rotate:
      check_rotate(p, role, op, members, bad);
      break;
    case program::Move::reduce:
      if (c.root == none) bad("a reduce needs a root");
      if (target && !none_of(target->layout.partial)) bad("a reduce leaves the root with the sum");
      break;
    case program::Move::broadcast:
      if (c.root == none) bad("a broadcast needs a root");
      break;
    case program::Move::gather:
    case program::Move::scatter:
      check_parts_of_root(p, r, op, members, bad);
      break;
  }
  const bool moves_shards =
      c.move == program::Move::reduce_scatter || c.move == program::Move::all_gather;
  if (moves_shards && source && target) {
    const std::int64_t a = elements_of(p, role, *source), b = elements_of(p, role, *target);
    const std::int64_t shard = c.move == program::Move::reduce_scatter ? b : a,
                       whole = c.move == program::Move::reduce_scatter ? a : b;
    if (shard * members != whole)
      bad(fmt::format("{} parts of {} elements do not make {}", members, shard, whole));
  }
}

/// Roles that share groups of a channel, directly or through other roles. Their n-th ops form one
/// event; within it each group meets by itself. `members`: ranks of each group; 0 if groups differ,
/// -1 while no group was counted.
struct RoleSet {
  std::set<Id> roles = {};
  std::int64_t members = -1;
};

/// The sets of roles that share groups of a channel, in ascending order. One pass over the ranks.
std::vector<RoleSet> role_sets(const OrderedProgram& linked, const program::Channel& channel) {
  const program::Program& p = linked.program;
  const program::GroupOfRank groups = group_of_rank(p, channel);
  std::vector<Id> joined(p.roles.size());  // union-find: the root of each tree names its set
  std::iota(joined.begin(), joined.end(), Id{0});
  const auto root = [&](Id r) {
    while (joined[r] != r) r = joined[r] = joined[joined[r]];
    return r;
  };
  std::vector<Id> first(groups.groups, none);  // [group]: one of its roles
  std::vector<std::int64_t> size(groups.groups, 0);
  for (Id rank = 0; rank < groups.of.size(); ++rank) {
    const Id g = groups.of[rank];
    if (g == none) continue;
    ++size[g];
    const Id role = linked.role_of[rank];
    if (first[g] == none) first[g] = role;
    if (first[g] != role) joined[root(role)] = root(first[g]);
  }
  std::vector<RoleSet> sets(p.roles.size());
  for (Id g = 0; g < groups.groups; ++g) {
    RoleSet& set = sets[root(first[g])];
    set.members = set.members < 0 || set.members == size[g] ? size[g] : 0;
  }
  for (Id r = 0; r < p.roles.size(); ++r) sets[root(r)].roles.insert(r);
  std::erase_if(sets, [](const RoleSet& set) { return set.members < 0; });
  std::sort(sets.begin(), sets.end(),
            [](const RoleSet& a, const RoleSet& b) { return a.roles < b.roles; });
  return sets;
}

/// Makes an event of the n-th ops of all roles of each set. `by_role`: the channel's collectives.
void match_collectives(OrderedProgram& linked, Id channel, const std::vector<RoleSet>& sets,
                       const std::map<Id, std::vector<Id>>& by_role) {
  const program::Program& p = linked.program;
  static const std::vector<Id> nothing;
  const auto ops_of = [&](Id role) -> const std::vector<Id>& {
    const auto it = by_role.find(role);
    return it == by_role.end() ? nothing : it->second;
  };
  for (const auto& [roles, members] : sets) {
    std::size_t most = 0, least = ~std::size_t{0};
    for (Id r : roles)
      most = std::max(most, ops_of(r).size()), least = std::min(least, ops_of(r).size());
    std::vector<RoleOp> event;
    for (std::size_t n = 0; n < most; ++n) {
      event.clear();
      for (Id r : roles) {
        if (n >= ops_of(r).size())
          throw ProgramError(fmt::format(
              "channel {}: role {} takes part in {} collectives a step, role {} in {}",
              p.channels[channel].name, p.roles[r].name, ops_of(r).size(),
              p.roles[*roles.begin() == r ? *roles.rbegin() : *roles.begin()].name, most));
        const Id o = ops_of(r)[n];
        LinkedOp& op = linked.roles[r].ops[o];
        op.sequence = static_cast<std::uint32_t>(n);
        check_collective(linked, r, o, members);
        const auto& c = std::get<program::Collective>(p.roles[r].ops[o].work);
        if (parts_of_root(c.move) && r != c.root) {  // has a part of what the others state
          if (op.bytes > program::most_bytes / members)
            throw ProgramError(fmt::format("a {} of more bytes than can be counted\n> {}",
                                           name_of(c.move), place(p, r, o)));
          op.elements *= members, op.bytes *= members;
        }
        event.push_back({r, o});
        if (!agree(linked, event[0], {r, o}))
          throw ProgramError(fmt::format(
              "channel {}: the {}. collectives of a step do not agree: {} and {}\n  {}\n> {}",
              p.channels[channel].name, n + 1, signature(linked, event[0].role, event[0].op),
              signature(linked, r, o), place(p, event[0].role, event[0].op), place(p, r, o)));
      }
      for (const RoleOp& m : event)
        linked.event_of[m.role][m.op] = static_cast<Id>(linked.events.size());
      linked.events.add(event);
    }
  }
}

using Pair = std::tuple<Id, Id, Id>;  // channel, from role, to role

void match_pairs(OrderedProgram& linked, const std::map<Pair, std::vector<Id>>& sends,
                 const std::map<Pair, std::vector<Id>>& recvs) {
  const program::Program& p = linked.program;
  auto describe = [&](const Pair& key) {
    return fmt::format("channel {}, {} to {}", p.channels[std::get<0>(key)].name,
                       p.roles[std::get<1>(key)].name, p.roles[std::get<2>(key)].name);
  };
  for (const auto& [key, list] : recvs)
    if (!sends.contains(key))
      throw ProgramError(fmt::format("{}: a receive without a send\n> {}", describe(key),
                                     place(p, std::get<2>(key), list[0])));
  for (const auto& [key, list] : sends) {
    const auto [channel, from, to] = key;
    const auto it = recvs.find(key);
    const std::size_t got = it == recvs.end() ? 0 : it->second.size();
    if (got != list.size())
      throw ProgramError(fmt::format(
          "{}: {} sends a step, {} receives\n> {}", describe(key), list.size(), got,
          got < list.size() ? place(p, from, list[got]) : place(p, to, it->second[list.size()])));
    if (p.roles[from].ranks.size() != p.roles[to].ranks.size())
      throw ProgramError(fmt::format("{}: {} ranks cannot meet {}", describe(key),
                                     p.roles[from].ranks.size(), p.roles[to].ranks.size()));
    for (std::size_t n = 0; n < list.size(); ++n) {
      const Id s = list[n], r = it->second[n];
      LinkedOp &send = linked.roles[from].ops[s], &recv = linked.roles[to].ops[r];
      send.sequence = recv.sequence = static_cast<std::uint32_t>(n);
      send.peer_op = r, recv.peer_op = s;
      if (send.bytes != recv.bytes || send.wire != recv.wire)
        throw ProgramError(fmt::format("{}: {} bytes of {} are sent, {} of {} expected\n  {}\n> {}",
                                       describe(key), send.bytes, name_of(send.wire), recv.bytes,
                                       name_of(recv.wire), place(p, from, s), place(p, to, r)));
      linked.event_of[from][s] = linked.event_of[to][r] = static_cast<Id>(linked.events.size());
      linked.events.add(std::array{RoleOp{from, s}, RoleOp{to, r}});
    }
  }
}

/// Checks that a mailbox has both a put and a take, that their payloads are equal, and that a role
/// sends exactly one reply for each message that it takes from a channel with replies.
void check_mailboxes(const OrderedProgram& linked) {
  const program::Program& p = linked.program;
  struct Ends {
    std::optional<RoleOp> put = {}, take = {};
  };
  std::map<Id, Ends> ends;
  for (Id r = 0; r < p.roles.size(); ++r) {
    std::map<Id, int> takes, replies;
    for (Id o = 0; o < p.roles[r].ops.size(); ++o) {
      const program::Work& work = p.roles[r].ops[o].work;
      if (const auto* put = std::get_if<program::Put>(&work)) {
        ends[put->channel].put = RoleOp{r, o};
        if (put->reply != none) ++replies[put->reply];
      } else if (const auto* take = std::get_if<program::Take>(&work)) {
        ends[take->channel].take = RoleOp{r, o};
        ++takes[take->channel];
      }
    }
    for (const auto& [channel, n] : replies)
      if (n != takes[channel])
        throw ProgramError(
            fmt::format("role {}: {} replies a step to {} messages taken from channel {}",
                        p.roles[r].name, n, takes[channel], p.channels[channel].name));
  }
  for (const auto& [channel, end] : ends) {
    if (!end.put || !end.take)
      throw ProgramError(fmt::format(
          "channel {}: messages are {}\n> {}", p.channels[channel].name,
          end.put ? "put and never taken" : "taken and never put",
          end.put ? place(p, end.put->role, end.put->op) : place(p, end.take->role, end.take->op)));
    const LinkedOp& put = linked.roles[end.put->role].ops[end.put->op];
    const LinkedOp& take = linked.roles[end.take->role].ops[end.take->op];
    if (put.bytes != take.bytes || put.wire != take.wire)
      throw ProgramError(fmt::format("channel {}: {} bytes are put, {} taken\n  {}\n> {}",
                                     p.channels[channel].name, put.bytes, take.bytes,
                                     place(p, end.put->role, end.put->op),
                                     place(p, end.take->role, end.take->op)));
  }
}

}  // namespace

void match_channels(OrderedProgram& linked) {
  const program::Program& p = linked.program;
  linked.event_of.resize(p.roles.size());
  std::vector<std::map<Id, std::vector<Id>>> collectives(p.channels.size());  // by role
  std::map<Pair, std::vector<Id>> sends, recvs;
  std::size_t ops = 0;
  for (const program::Role& role : p.roles) ops += role.ops.size();
  linked.events.reserve(ops);
  for (Id r = 0; r < p.roles.size(); ++r) {
    const program::Role& role = p.roles[r];
    linked.event_of[r].assign(role.ops.size(), none);
    for (Id o : step_order(role)) {
      const bool local =
          std::visit(program::overloaded{[&](const program::Collective& c) {
                                           collectives[c.channel][r].push_back(o);
                                           return false;
                                         },
                                         [&](const program::Send& s) {
                                           sends[{s.channel, r, s.peer}].push_back(o);
                                           return false;
                                         },
                                         [&](const program::Recv& v) {
                                           recvs[{v.channel, v.peer, r}].push_back(o);
                                           return false;
                                         },
                                         [](const auto&) { return true; }},
                     role.ops[o].work);
      if (!local) continue;
      linked.event_of[r][o] = static_cast<Id>(linked.events.size());
      linked.events.add(std::array{RoleOp{r, o}});
    }
  }
  std::map<program::Axes, std::vector<RoleSet>> regular;  // equal axes give equal sets
  for (Id c = 0; c < p.channels.size(); ++c) {
    if (collectives[c].empty()) continue;
    const program::Group& group = p.channels[c].group;
    if (!group.colour.empty()) {
      match_collectives(linked, c, role_sets(linked, p.channels[c]), collectives[c]);
      continue;
    }
    const auto [it, fresh] = regular.try_emplace(group.axes);
    if (fresh) it->second = role_sets(linked, p.channels[c]);
    match_collectives(linked, c, it->second, collectives[c]);
  }
  match_pairs(linked, sends, recvs);
  if (linked.mailboxes) check_mailboxes(linked);
  for (Id r = 0; r < p.roles.size(); ++r)
    for (Id o = 0; o < p.roles[r].ops.size(); ++o)
      if (linked.event_of[r][o] == none)
        throw ProgramError(fmt::format(
            "a collective in which no group of its channel takes part\n> {}", place(p, r, o)));
}

}  // namespace rehearse::link
