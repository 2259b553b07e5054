#include "engine/goodput/recovery_policy.h"

#include <algorithm>

namespace rehearse::goodput {

std::map<job::RecoveryPolicy, Policy>& policies() {
  static std::map<job::RecoveryPolicy, Policy> all;
  return all;
}

const Policy& policy_named(job::RecoveryPolicy name) { return policies().at(name); }

Register::Register(job::RecoveryPolicy name, const Policy& policy) {
  policies().emplace(name, policy);
}

Decision start_anew(const Situation& s) {
  if (s.empty_slots > s.spares) return {.waits = true};
  return {.spares = s.empty_slots,
          .replicas = s.setting.replicas,
          .replacing = s.empty_slots > 0 ? s.setting.replacement : 0,
          .restarting = s.setting.restart + s.load()};
}

}  // namespace rehearse::goodput
