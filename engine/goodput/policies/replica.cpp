// Replica: a data-parallel replica is a unit of failure. The others form a new quorum and go on
// without its samples. It starts anew, heals from a peer and joins between two steps (torchft).
// Only when no replica is left, all start anew from the newest checkpoint.
#include "engine/goodput/recovery_policy.h"

namespace rehearse::goodput {
namespace {

Decision recover(const Situation& s) {
  const bool goes_on = s.survivors_know() && s.can_run_with(s.whole_replicas);
  const int spares = std::min(s.spares, s.empty_slots);
  const Ticks replacing = spares > 0 ? s.setting.replacement : 0;
  if (goes_on)
    return {.spares = spares,
            .replicas = s.whole_replicas,
            .survivors = true,
            .replanning = s.setting.replan,
            .rejoins = replacing + s.setting.restart};
  if (!s.can_run_with(s.standing_replicas)) return {.waits = true};
  return {.spares = spares,
          .replicas = s.standing_replicas,
          .replacing = replacing,
          .restarting = s.setting.restart + s.load()};
}

const Register replica(job::RecoveryPolicy::replica,
                       {.summary = "other replicas go on without the samples of a lost one",
                        .source = "torchft",
                        .recover = recover,
                        .units = true});

}  // namespace
}  // namespace rehearse::goodput
