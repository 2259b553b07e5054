// Walks a role's ops over a few iterations with vector clocks (one entry per lane: how many of the
// lane's ops have ended). Adds a wait only for a hazard that neither lane order nor an earlier wait
// covers. Afterwards the linker removes waits that a path through another role implies.
#include <algorithm>

#include "engine/link/hazards.h"
#include "engine/link/link.h"
#include "engine/methods/passes/passes.h"

namespace rehearse::methods {
namespace {

/// A hazard of an op that lane order alone does not cover.
struct Candidate {
  Id on = none;
  int lag = 0;
  bool decided = false;
};

/// Whether the refs of two roles imply the same waits, as for replicas with different numbers of
/// samples, or stages with equally many layers.
bool alike(const program::Role& a, const program::Role& b) {
  const auto same_lane = [](const program::Lane& x, const program::Lane& y) {
    return x.order == y.order;
  };
  const auto same_storage = [](const program::Storage& x, const program::Storage& y) {
    return x.life == y.life && x.indices == y.indices && x.versions == y.versions;
  };
  const auto whole = [](const program::Role& role, const program::View& v) {
    return v.begin == 0 && v.end > 0 && v.end == role.storages[v.storage].elements;
  };
  const auto same_view = [&](const program::View& x, const program::View& y) {
    return x.storage == y.storage && x.slice == y.slice &&
           ((whole(a, x) && whole(b, y)) ||
            (x.begin == y.begin && x.end == y.end &&
             a.storages[x.storage].elements == b.storages[y.storage].elements));
  };
  const auto same_op = [](const program::Op& x, const program::Op& y) {
    return x.lane == y.lane && x.shift == y.shift && x.refs == y.refs && x.after == y.after;
  };
  return std::ranges::equal(a.ops, b.ops, same_op) &&
         std::ranges::equal(a.views, b.views, same_view) &&
         std::ranges::equal(a.storages, b.storages, same_storage) &&
         std::ranges::equal(a.lanes, b.lanes, same_lane);
}

void infer(const program::Program& program, program::Role& role) {
  const std::size_t ops = role.ops.size(), lanes = role.lanes.size();
  const std::vector<link::Hazard> hazards = link::hazard_list(program, role);
  std::vector<Candidate> wanted;  // by op, nearest first
  std::vector<std::uint32_t> wanted_end(ops, 0);
  wanted.reserve(hazards.size());
  int horizon = 1;
  for (auto h = hazards.begin(); h != hazards.end();) {
    const Id op = h->op;
    const auto begin = static_cast<std::ptrdiff_t>(wanted.size());
    for (; h != hazards.end() && h->op == op; ++h) {
      wanted.push_back({.on = h->on, .lag = h->lag});
      horizon = std::max(horizon, h->lag + role.ops[op].shift);
    }
    std::sort(wanted.begin() + begin, wanted.end(), [](const Candidate& a, const Candidate& b) {
      return a.lag != b.lag ? a.lag < b.lag : a.on > b.on;
    });
    wanted_end[op] = static_cast<std::uint32_t>(wanted.size());
  }
  std::vector<std::uint32_t> place(ops), length(lanes);
  for (Id o = 0; o < ops; ++o) place[o] = length[role.ops[o].lane]++;

  // ended[(i * ops + o) * lanes + lane]: the clock at the end of op o in iteration i.
  const int iterations = horizon + 2;
  std::vector<std::uint32_t> ended(static_cast<std::size_t>(iterations) * ops * lanes, 0);
  auto clock = [&](int iteration, Id op) {
    return ended.data() + (static_cast<std::size_t>(iteration) * ops + op) * lanes;
  };
  auto join = [&](std::uint32_t* into, const std::uint32_t* from) {
    for (std::size_t l = 0; l < lanes; ++l) into[l] = std::max(into[l], from[l]);
  };
  std::vector<std::pair<int, Id>> last(lanes, {-1, none});
  std::vector<program::After> added;
  std::size_t undecided = wanted.size();
  for (int i = 0; i < iterations && undecided > 0; ++i) {
    std::uint32_t next = 0;  // index into `wanted`
    for (Id o = 0; o < ops; ++o) {
      program::Op& op = role.ops[o];
      const int step = i - op.shift;
      std::uint32_t* now = clock(i, o);
      auto& [last_iteration, last_op] = last[op.lane];
      if (last_op != none) join(now, clock(last_iteration, last_op));
      last_iteration = i, last_op = o;
      auto iteration_of = [&](Id on, int lag) { return step - lag + role.ops[on].shift; };
      // The clock of a later op is not known yet, so it covers no hazard here. The linker reports
      // such an order.
      auto known = [&](Id on, int at) { return at >= 0 && (at < i || (at == i && on < o)); };
      for (const program::After& a : op.after)
        if (const int at = iteration_of(a.op, a.lag); known(a.op, at)) join(now, clock(at, a.op));
      added.clear();
      for (; next < wanted_end[o]; ++next) {
        Candidate& c = wanted[next];
        const int at = iteration_of(c.on, c.lag);
        if (c.decided || step - c.lag < 0 || at < 0) continue;
        c.decided = true, --undecided;
        const std::uint32_t needed =
            static_cast<std::uint32_t>(at) * length[role.ops[c.on].lane] + place[c.on] + 1;
        if (now[role.ops[c.on].lane] >= needed) continue;
        added.push_back({.op = c.on, .lag = c.lag});
        if (known(c.on, at)) join(now, clock(at, c.on));
      }
      op.after.insert(op.after.end(), added.begin(), added.end());
      now[op.lane] = static_cast<std::uint32_t>(i) * length[op.lane] + place[o] + 1;
    }
  }
}

}  // namespace

program::Program infer_all_waits(LoweredProgram lowered) {
  program::Program program = std::move(lowered.program);
  auto& roles = program.roles;
  std::vector<Id> like;  // by role: the first role that is alike
  for (const program::Role& role : roles) {
    Id first = 0;
    while (first < like.size() && (like[first] != first || !alike(roles[first], role))) ++first;
    like.push_back(first);
  }
  for (Id r = 0; r < roles.size(); ++r)
    if (like[r] == r)
      infer(program, roles[r]);
    else
      for (Id o = 0; o < roles[r].ops.size(); ++o)
        roles[r].ops[o].after = roles[like[r]].ops[o].after;
  return program;
}

program::Program infer_waits(LoweredProgram lowered) {
  return link::without_redundant_waits(infer_all_waits(std::move(lowered)));
}

}  // namespace rehearse::methods
