#include "runtime/training/replan.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/job/plan_file.h"
#include "engine/methods/strategy.h"

namespace rehearse::runtime {

plan::Plan plan_from(const std::string& text, const std::string& where, const job::Job& job) {
  return job::parse_plan_file(text, where, job.model, job.cluster).why.plan;
}

PlanRecord resumed_plan(const std::string& checkpoint, const job::Job& job) {
  Manifest manifest = read_manifest(checkpoint);
  if (manifest.record.placements == 0 || manifest.record.plan.empty() ||
      manifest.world_size != job.plan.mesh.world_size() ||
      manifest.global_batch != job.plan.schedule.global_batch)
    return {};
  return std::move(manifest.record);
}

std::optional<std::vector<int>> balanced_shares(const SlowRank& slow, const PlacedPlan& current) {
  const job::Job& job = current.plan->job;
  planner::Measured measured;
  for (Id rank = 0; rank < slow.seconds.size(); ++rank)
    measured.busy.push_back(slow.seconds[current.context.wiring.process(rank)]);
  const auto plan = planner::BalanceLoad(1, job.adaptive.balance_bound).observe(measured, job.plan);
  if (!plan) return std::nullopt;
  std::vector<int> shares;
  for (int replica = 0; replica < plan->mesh.dp; ++replica)
    shares.push_back(plan->samples(replica));
  return shares;
}

std::optional<plan::Plan> consult(planner::Policy& policy, const PlacedPlan& current,
                                  planner::Measured measured, double busy, Control& control) {
  const std::vector<std::string> all =
      control.gather("busy", busy < 0 ? std::string() : fmt::format("{:.9g}", busy));
  std::string said;
  if (control.environment().rank == 0) {
    if (std::none_of(all.begin(), all.end(), [](const std::string& one) { return one.empty(); }))
      for (Id rank = 0; rank < all.size(); ++rank)
        measured.busy.push_back(std::stod(all[current.context.wiring.process(rank)]));
    if (const std::optional<plan::Plan> plan = policy.observe(measured, current.plan->job.plan)) {
      if (const auto other = planner::difference(current.plan->job.plan, *plan))
        throw InputError(fmt::format("the new plan has {} {}, the run has {}: a run keeps its {}",
                                     other->what, other->next, other->first, other->what));
      const job::Job& job = current.plan->job;
      said = to_toml({.plan = methods::prepare(*plan, job.model)}, job, nullptr);
    }
  }
  const std::string text =
      control.gather("plan", said, current.plan->job.adaptive.plan_timeout).front();
  if (text.empty()) return std::nullopt;
  return plan_from(text, "the new plan", current.plan->job);
}

}  // namespace rehearse::runtime
