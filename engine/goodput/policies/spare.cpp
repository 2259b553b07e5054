// Spare: nodes stand by with their processes started. One takes the role of a dead node, with the
// state of a surviving replica where there is one, else with that of the newest checkpoint. The
// other processes keep running and keep their state, also while they wait for a node (warm standby
// of ByteRobust, arXiv 2509.16293; TorchPass).
#include "engine/goodput/recovery_policy.h"

namespace rehearse::goodput {
namespace {

Decision recover(const Situation& s) {
  const bool survivors = s.survivors_know();
  if (s.empty_slots > s.spares) return {.waits = true, .survivors = survivors};
  return {.spares = s.empty_slots,
          .replicas = s.setting.replicas,
          .survivors = survivors,
          .restarting = s.setting.takeover + (survivors ? s.setting.copy : s.load())};
}

const Register spare(job::RecoveryPolicy::spare,
                     {.summary = "a node that stands by takes the place of a dead one",
                      .source = "ByteRobust, arXiv 2509.16293; TorchPass",
                      .recover = recover,
                      .stands_by = true});

}  // namespace
}  // namespace rehearse::goodput
