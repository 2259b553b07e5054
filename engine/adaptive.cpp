// See adaptive.h.
#include "engine/adaptive.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/errors.h"
#include "engine/names.h"
#include "engine/plan_file.h"
#include "engine/strategy.h"

namespace rehearse {
namespace {

void check_followed(const Job& job, const Plan& first) {
  const auto refuse = [&](const char* what, const auto& here, const auto& there) {
    throw located(job, InputError(fmt::format(
                           "adaptive.warmup_plan: \"{}\" has {} {}, the job's plan has {}: a run "
                           "keeps its {}",
                           job.adaptive.warmup_plan, what, here, there, what)));
  };
  const Plan& next = job.plan;
  if (first.world_size() != next.world_size())
    refuse("world size", first.world_size(), next.world_size());
  if (first.global_batch != next.global_batch)
    refuse("global batch", first.global_batch, next.global_batch);
  if (first.optimizer != next.optimizer)
    refuse("optimizer", name_of(first.optimizer), name_of(next.optimizer));
  if (first.clip != next.clip) refuse("clipping", first.clip, next.clip);
}

}  // namespace

std::optional<Plan> warm_up_plan(const Job& job) {
  const std::string& file = job.adaptive.warmup_plan;
  if (file.empty()) return std::nullopt;
  if (!std::filesystem::is_regular_file(file))
    throw located(job,
                  InputError(fmt::format("adaptive.warmup_plan: \"{}\" does not exist", file)));
  Plan first = prepare(load_plan(file, job.model, job.cluster), job.model);
  check_followed(job, first);
  return first;
}

AdaptiveRun adaptive_run(const Job& job) {
  AdaptiveRun run{.first = job.plan};
  std::vector<std::shared_ptr<Policy>> policies;
  if (std::optional<Plan> first = warm_up_plan(job)) {
    run.first = std::move(*first);
    policies.push_back(std::make_shared<ReplaceOnce>(
        job.adaptive.warmup_steps,
        [plan = job.plan](const Measured&, const Plan&) { return plan; }));
  }
  if (job.adaptive.balance_every > 0)
    policies.push_back(
        std::make_shared<BalanceLoad>(job.adaptive.balance_every, job.adaptive.balance_bound));
  if (policies.size() == 1) run.policy = policies.front();
  if (policies.size() > 1) run.policy = std::make_shared<Policies>(std::move(policies));
  return run;
}

}  // namespace rehearse
