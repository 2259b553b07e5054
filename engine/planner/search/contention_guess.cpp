#include "engine/planner/search/contention_guess.h"

#include <fmt/format.h>

#include "engine/planner/planner.h"

namespace rehearse::planner {
namespace {

std::string class_of(const plan::Plan& plan) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", plan.mesh.pp, plan.mesh.dp,
                     plan.mesh.tp, plan.mesh.order, schedule_text(plan),
                     plan.exchange.sharding.zero, plan.exchange.sharding.keep_gathered,
                     plan.exchange.sharding.reduce_once, plan.exchange.sharding.prefetch,
                     plan.exchange.sharding.pending_buckets, plan.exchange.sharding.shard_group,
                     plan.exchange.sharding.reshard_group, plan.exchange.sparse.layers.empty());
}

std::string kind_of(const plan::Plan& plan) {
  return fmt::format("{} {} {} {} {}", class_of(plan), plan.schedule.micro_batches,
                     plan.exchange.bucket_bytes(), plan.schedule.shares.empty(),
                     std::ranges::is_sorted(plan.placement.rank_to_device));
}

void learn(std::map<std::string, double>& ratios, const std::string& of, double ratio) {
  const auto [it, fresh] = ratios.try_emplace(of, ratio);
  it->second = std::min(it->second, ratio);
}

double known(const std::map<std::string, double>& ratios, const std::string& of) {
  const auto it = ratios.find(of);
  return it == ratios.end() ? 1 : it->second;
}

}  // namespace

double ContentionGuess::of_bound(const plan::Plan& plan, double bound, By by) const {
  return of_dry_run(plan, bound * known(dry_run_, class_of(plan)), by);
}
double ContentionGuess::of_dry_run(const plan::Plan& plan, double seconds, By by) const {
  return seconds * known(simulation_, by == By::its_kind ? kind_of(plan) : class_of(plan));
}
void ContentionGuess::learn_dry_run(const plan::Plan& plan, double bound, double seconds) {
  if (bound > 0) learn(dry_run_, class_of(plan), seconds / bound);
}
void ContentionGuess::learn_simulation(const plan::Plan& plan, double dry_run, double seconds) {
  if (dry_run <= 0) return;
  for (const std::string& of : {class_of(plan), kind_of(plan)})
    learn(simulation_, of, seconds / dry_run);
}

}  // namespace rehearse::planner
