#include "engine/planner/search/contention_guess.h"

#include <fmt/format.h>

#include "engine/planner/planner.h"

namespace rehearse::planner {

std::string ContentionGuess::class_of(const plan::Plan& plan) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", plan.mesh.pp, plan.mesh.dp,
                     plan.mesh.tp, plan.mesh.order, schedule_text(plan),
                     plan.exchange.sharding.zero, plan.exchange.sharding.keep_gathered,
                     plan.exchange.sharding.reduce_once, plan.exchange.sharding.prefetch,
                     plan.exchange.sharding.pending_buckets, plan.exchange.sharding.shard_group,
                     plan.exchange.sharding.reshard_group, plan.exchange.sparse.layers.empty());
}

ContentionGuess::Ratios ContentionGuess::known(const plan::Plan& plan) const {
  const auto it = classes_.find(class_of(plan));
  return it == classes_.end() ? Ratios{} : it->second;
}

double ContentionGuess::of_bound(const plan::Plan& plan, double bound) const {
  const Ratios ratios = known(plan);
  return bound * (ratios.dry_run == 0 ? 1 : ratios.dry_run) *
         (ratios.simulation == 0 ? 1 : ratios.simulation);
}
double ContentionGuess::of_dry_run(const plan::Plan& plan, double seconds) const {
  const Ratios ratios = known(plan);
  return seconds * (ratios.simulation == 0 ? 1 : ratios.simulation);
}
void ContentionGuess::learn_dry_run(const plan::Plan& plan, double bound, double seconds) {
  if (bound <= 0) return;
  Ratios& ratios = classes_[class_of(plan)];
  ratios.learn(ratios.dry_run, seconds / bound);
}
void ContentionGuess::learn_simulation(const plan::Plan& plan, double dry_run, double seconds) {
  if (dry_run <= 0) return;
  Ratios& ratios = classes_[class_of(plan)];
  ratios.learn(ratios.simulation, seconds / dry_run);
}

}  // namespace rehearse::planner
