#include "engine/planner/adaptive.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
#include "engine/job/plan_file.h"
#include "engine/methods/strategy.h"
#include "engine/tensors/variance.h"

namespace rehearse::planner {
namespace {

/// Throws InputError when a run cannot change from plan `first` to the job's plan.
void check_followed(const job::Job& job, const plan::Plan& first) {
  if (const auto other = difference(first, job.plan))
    throw located(
        job, InputError(fmt::format(
                 "adaptive.warmup_plan: \"{}\" has {} {}, the job's plan has {}: a run "
                 "keeps its {}",
                 job.adaptive.warmup_plan, other->what, other->first, other->next, other->what)));
}

/// Whether the variances that a warm-up measures can change the plan: they decide which layers send
/// sparse gradients.
bool variances_matter(const job::Job& job) {
  return job.plan.mesh.world_size() > 1 &&
         job.plan.exchange.sparse.reduction != plan::Reduction::dense;
}

}  // namespace

std::optional<plan::Plan> warm_up_plan(const job::Job& job, const plan::Decision* decided) {
  const std::string& file = job.adaptive.warmup_plan;
  std::optional<plan::Plan> first;
  if (!file.empty()) {
    if (!std::filesystem::is_regular_file(file))
      throw located(job,
                    InputError(fmt::format("adaptive.warmup_plan: \"{}\" does not exist", file)));
    first = methods::prepare(job::load_plan(file, job.model, job.cluster), job.model);
    check_followed(job, *first);
  } else if (decided != nullptr && variances_matter(job)) {
    first = decided->warm_up;
  }
  if (first && decided != nullptr && first->exchange.observe == 0)
    first->exchange.observe = tensors::default_observe_stride;
  return first;
}

AdaptiveRun adaptive_run(const job::Job& job, const plan::Decision* decided,
                         ReplaceOnce::Decide decide) {
  AdaptiveRun run{.first = job.plan};
  std::vector<std::shared_ptr<Policy>> policies;
  if (std::optional<plan::Plan> first = warm_up_plan(job, decided)) {
    run.first = std::move(*first);
    run.warms_up = true;
    if (!decide) decide = [plan = job.plan](const Measured&, const plan::Plan&) { return plan; };
    policies.push_back(std::make_shared<ReplaceOnce>(job.adaptive.warmup_steps, std::move(decide)));
  }
  if (job.adaptive.balance_every > 0)
    policies.push_back(
        std::make_shared<BalanceLoad>(job.adaptive.balance_every, job.adaptive.balance_bound));
  if (policies.size() == 1) run.policy = policies.front();
  if (policies.size() > 1) run.policy = std::make_shared<Policies>(std::move(policies));
  return run;
}

}  // namespace rehearse::planner
