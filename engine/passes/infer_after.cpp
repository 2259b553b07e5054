// See passes.h. Walks a role's ops over a few iterations with vector clocks (one entry a lane: how
// many of its ops have ended when an op starts) and adds a wait only where a hazard is not yet
// covered by lane order or by a wait already added. The linker then removes what only the path
// through another role covers.
#include <algorithm>
#include <map>

#include "engine/hazards.h"
#include "engine/link.h"
#include "engine/passes/passes.h"

namespace rehearse {
namespace {

/// Hazards of one op that lane order alone does not cover, nearest first.
struct Candidate {
  Id on = none;
  int lag = 0;
  bool decided = false;
};

void infer(const Program& program, Role& role) {
  const std::size_t ops = role.ops.size(), lanes = role.lanes.size();
  std::vector<std::vector<Candidate>> wanted(ops);
  int horizon = 1;
  for (const Hazard& h : hazards_of(program, role).list) {
    wanted[h.op].push_back({.on = h.on, .lag = h.lag});
    horizon = std::max(horizon, h.lag + role.ops[h.op].shift);
  }
  for (auto& list : wanted)
    std::sort(list.begin(), list.end(), [](const Candidate& a, const Candidate& b) {
      return a.lag != b.lag ? a.lag < b.lag : a.on > b.on;
    });
  std::vector<std::uint32_t> place(ops), length(lanes);
  for (Id o = 0; o < ops; ++o) place[o] = length[role.ops[o].lane]++;

  // ended[i * ops + o]: the clock when op o of iteration i has ended.
  const int iterations = horizon + 2;
  std::vector<std::uint32_t> ended(static_cast<std::size_t>(iterations) * ops * lanes, 0);
  auto clock = [&](int iteration, Id op) {
    return ended.data() + (static_cast<std::size_t>(iteration) * ops + op) * lanes;
  };
  auto join = [&](std::uint32_t* into, const std::uint32_t* from) {
    for (std::size_t l = 0; l < lanes; ++l) into[l] = std::max(into[l], from[l]);
  };
  std::vector<std::pair<int, Id>> last(lanes, {-1, none});
  for (int i = 0; i < iterations; ++i)
    for (Id o = 0; o < ops; ++o) {
      Op& op = role.ops[o];
      const int step = i - op.shift;
      std::uint32_t* now = clock(i, o);
      auto& [last_iteration, last_op] = last[op.lane];
      if (last_op != none) join(now, clock(last_iteration, last_op));
      last_iteration = i, last_op = o;
      auto iteration_of = [&](Id on, int lag) { return step - lag + role.ops[on].shift; };
      // A clock of a later turn is not known yet: the linker reports such an order, here it just
      // cannot cover anything.
      auto known = [&](Id on, int at) { return at >= 0 && (at < i || (at == i && on < o)); };
      for (const After& a : op.after)
        if (const int at = iteration_of(a.op, a.lag); known(a.op, at)) join(now, clock(at, a.op));
      for (Candidate& c : wanted[o]) {
        const int at = iteration_of(c.on, c.lag);
        if (c.decided || step - c.lag < 0 || at < 0) continue;
        c.decided = true;
        const std::uint32_t needed =
            static_cast<std::uint32_t>(at) * length[role.ops[c.on].lane] + place[c.on] + 1;
        if (now[role.ops[c.on].lane] >= needed) continue;
        op.after.push_back({.op = c.on, .lag = static_cast<std::uint8_t>(c.lag)});
        if (known(c.on, at)) join(now, clock(at, c.on));
      }
      now[op.lane] = static_cast<std::uint32_t>(i) * length[op.lane] + place[o] + 1;
    }
}

}  // namespace

Program infer_waits(Program program) {
  for (Role& role : program.roles) infer(program, role);
  return program;
}

Program infer_after(Program program) {
  return without_redundant_waits(infer_waits(std::move(program)));
}

}  // namespace rehearse
