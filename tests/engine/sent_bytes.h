// Counts the bytes that a program sends in a step, transfer by transfer, to compare with formulas.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "engine/collectives/schedule.h"
#include "engine/link/link.h"

namespace rehearse::test {

/// Bytes that the groups of an event's collective send. An automatic algorithm counts as a ring, or
/// as direct where there is no ring.
inline std::int64_t sent_by(const link::LinkedProgram& linked,
                            std::span<const link::RoleOp> event) {
  const program::Program& p = linked.program;
  const auto& c = std::get<program::Collective>(p.roles[event[0].role].ops[event[0].op].work);
  const link::LinkedOp& op = linked.roles[event[0].role].ops[event[0].op];
  std::int64_t bytes = 0;
  for (const auto& group : groups_of(p, p.channels[c.channel])) {
    if (std::none_of(event.begin(), event.end(),
                     [&](const link::RoleOp& m) { return m.role == linked.role_of[group[0]]; }))
      continue;
    const std::vector<Id> nodes(group.size(), 0);
    int root = c.distance;
    for (std::size_t m = 0; c.root != none && m < group.size(); ++m)
      if (linked.role_of[group[m]] == c.root) root = static_cast<int>(m);
    program::Algorithm algorithm = c.algorithm;
    if (algorithm == program::Algorithm::automatic)
      algorithm = collectives::serves(program::Algorithm::ring, c.move)
                      ? program::Algorithm::ring
                      : program::Algorithm::direct;
    const auto rounds = collectives::schedule(c.move, algorithm, op.elements, nodes, root);
    std::vector<collectives::Transfer> transfers;
    for (int r = 0; r < rounds->rounds(); ++r) {
      transfers.clear();
      rounds->round(r, -1, transfers);
      for (const collectives::Transfer& t : transfers)
        bytes += (t.end - t.begin) * size_of(op.wire);
    }
  }
  return bytes;
}

/// Of all ranks by ops for which `counts` says so.
template <class Counts>
std::int64_t sent_bytes_of(const link::LinkedProgram& linked, Counts counts) {
  const program::Program& p = linked.program;
  std::int64_t bytes = 0;
  for (const auto& event : linked.events) {
    const auto [r, o] = event[0];
    if (!counts(p.roles[r].ops[o].when)) continue;
    const program::Work& work = p.roles[r].ops[o].work;
    if (std::holds_alternative<program::Collective>(work))
      bytes += sent_by(linked, event);
    else if (std::holds_alternative<program::Send>(work) ||
             std::holds_alternative<program::Put>(work))
      bytes += linked.roles[r].ops[o].bytes * static_cast<std::int64_t>(p.roles[r].ranks.size());
  }
  return bytes;
}

/// Of all ranks in a step, without ops that work in the first steps only.
inline std::int64_t sent_bytes(const link::LinkedProgram& linked) {
  return sent_bytes_of(linked, [](const program::When& when) { return when.until == 0; });
}
/// Of all ranks in step `step`.
inline std::int64_t sent_bytes(const link::LinkedProgram& linked, int step) {
  return sent_bytes_of(linked, [&](const program::When& when) { return when.due(step); });
}

}  // namespace rehearse::test
