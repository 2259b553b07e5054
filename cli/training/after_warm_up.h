// The decision that a real run of the adaptive method takes once it has warmed up: `rehearse plan`
// with what was measured, in a process of its own, so that the plan is one that anybody can make
// again from the files left behind.
#pragma once
#include <string>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/job/job.h"
#include "engine/planner/policy.h"

namespace rehearse::cli {

/// `into`'s gradient variances of this model replaced by these.
void replace_variances(costs::Profile& into, const std::string& model,
                       const std::vector<tensors::LayerVariance>& variances);

/// Asked in rank 0. `set`: --set of the command line; `path`: the job file. Writes
/// warm-up.profile.json and plan.toml into train.out. Throws BackendError when planning fails or
/// takes longer than adaptive.plan_timeout.
planner::ReplaceOnce::Decide decide_after_warm_up(const job::Job& job, const std::string& path,
                                                  const std::vector<std::string>& set);

}  // namespace rehearse::cli
