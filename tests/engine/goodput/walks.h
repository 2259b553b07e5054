// A small run and the incidents of its walks, for tests of the walk.
#pragma once
#include <numeric>
#include <vector>

#include "engine/goodput/walk.h"

namespace rehearse::goodput {

using job::RecoveryPolicy;

constexpr Ticks second = 1'000'000'000;

/// Four nodes of one rank: four replicas, steps of 10 s, a checkpoint of 5 s every ten steps.
inline Setting small() {
  Setting s;
  s.duration = 10'000 * second;
  s.step = 10 * second;
  s.ranks_of_slot = {1, 1, 1, 1};
  s.replicas_of_slot = {{0}, {1}, {2}, {3}};
  s.replicas = 4;
  s.step_with = [step = s.step](int r) { return step * 4 / r; };
  s.replicated = true;
  s.save_every = 10;
  s.checkpoint = {.stall = 5 * second, .load = 7 * second};
  s.default_detection = 20 * second;
  s.restart = 100 * second;
  s.replacement = 50 * second;
  s.replan = 30 * second;
  s.takeover = 15 * second;
  s.copy = 3 * second;
  return s;
}

inline Incident death(Ticks at, Id slot, Ticks repair = 0) {
  return {.at = at, .strike = Strike::loses, .slots = {slot}, .lasts = repair};
}
inline Incident stop(Ticks at, Id slot) {
  return {.at = at, .strike = Strike::stops, .slots = {slot}};
}

inline Outcome run(const Setting& s, RecoveryPolicy policy,
                   const std::vector<Incident>& incidents) {
  return walk(s, policy_named(policy), incidents);
}

inline Ticks lost(const Outcome& o, Loss loss) { return o.lost[static_cast<std::size_t>(loss)]; }
inline Ticks total(const Outcome& o) {
  return std::accumulate(o.lost.begin(), o.lost.end(), o.productive);
}

}  // namespace rehearse::goodput
