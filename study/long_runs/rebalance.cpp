#include "study/long_runs/rebalance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "engine/base/errors.h"
#include "engine/methods/strategy.h"
#include "engine/planner/placement/shares.h"

namespace rehearse::study {

void check_rebalance(const job::Job& job) {
  if (job.recovery.slow_rank != job::SlowRankPolicy::rebalance) return;
  const job::Adaptive& adaptive = job.adaptive;
  if (adaptive.balance_every > 0 || !adaptive.warmup_plan.empty())
    throw job::located(
        job, InputError(fmt::format(
                 "recovery.slow_rank: \"rebalance\" with {}: a run that changes its plan itself "
                 "can use \"evict\", or adaptive.balance_every without recovery.slow_rank",
                 adaptive.balance_every > 0 ? "adaptive.balance_every" : "adaptive.warmup_plan")));
  const auto takes_shares = [](const methods::Strategy& s) {
    return s.combines.shares && !s.planned;
  };
  if (takes_shares(methods::strategy_named(job.plan.method)) && job.plan_file.empty() &&
      job.plan.mesh.dp > 1)
    return;
  std::vector<std::string> able;
  for (const auto& [name, strategy] : methods::strategies())
    if (takes_shares(strategy)) able.push_back(name);
  throw job::located(
      job, InputError(fmt::format(
               "recovery.slow_rank: \"rebalance\" needs method.dp >= 2 and a method that the job "
               "states and that takes method.shares ({}); \"{}\"{} can use \"evict\"",
               fmt::join(able, ", "), job.plan.method,
               job.plan_file.empty() ? fmt::format(" with dp = {}", job.plan.mesh.dp)
                                     : " from a plan file")));
}

double balanced_factor(const job::Job& job, const goodput::Layout& layout,
                       const std::vector<Id>& slots, double factor) {
  const plan::Plan& plan = job.plan;
  std::vector<double> seconds(static_cast<std::size_t>(plan.mesh.dp), 1.0);  // of a sample
  for (std::size_t rank = 0; rank < layout.slot_of_rank.size(); ++rank)
    if (std::ranges::count(slots, layout.slot_of_rank[rank]) > 0)
      seconds[layout.replica_of_rank[rank]] = factor;
  const std::vector<int> shares =
      planner::shares_of(seconds, plan.schedule.global_batch / plan.schedule.micro_batches);
  double most_before = 0, most_after = 0;
  for (int replica = 0; replica < plan.mesh.dp; ++replica) {
    const auto at = static_cast<std::size_t>(replica);
    most_before = std::max<double>(most_before, plan.samples(replica));
    most_after = std::max(most_after, seconds[at] * shares[at]);
  }
  return std::clamp(most_after / most_before, 1.0, factor);
}

}  // namespace rehearse::study
