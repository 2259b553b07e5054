// Shrink: a new plan for the nodes that are left, with fewer data-parallel replicas and the same
// global batch. Spare nodes are used first. State comes from survivors where every replica has a
// whole copy, else from the newest checkpoint (Varuna, EuroSys 2022; Oobleck, SOSP 2023). Nodes
// that return are used after the next failure.
#include "engine/goodput/policies/shrink.h"

#include <algorithm>

namespace rehearse::goodput {

Decision go_on_with_fewer(const Situation& s) {
  const int filled = std::min(s.spares, s.empty_slots);
  // Slots are alike but for the last one, so a filled slot counts as the largest.
  const std::vector<int>& slots = s.setting.ranks_of_slot;
  int total = 0, largest = 0;
  for (const int ranks : slots) total += ranks, largest = std::max(largest, ranks);
  const int ranks = std::min(total, s.alive_ranks + filled * largest);
  const int replicas =
      std::min(s.setting.replicas, (ranks - s.setting.servers) / s.setting.ranks_of_replica);
  const bool survivors = s.survivors_know();
  if (!s.can_run_with(replicas)) return {.waits = true, .survivors = survivors};
  return {.spares = filled,
          .replicas = replicas,
          .survivors = survivors,
          .replacing = filled > 0 ? s.setting.replacement : 0,
          .replanning = s.setting.replan,
          .restarting = survivors ? s.setting.copy : s.load()};
}

namespace {

const Register shrink(job::RecoveryPolicy::shrink,
                      {.summary = "goes on with fewer replicas and the same batch",
                       .source = "Varuna, EuroSys 2022; Oobleck, SOSP 2023",
                       .recover = go_on_with_fewer,
                       .shrinks = true});

}  // namespace
}  // namespace rehearse::goodput
