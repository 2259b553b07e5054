// Plans again after the warm-up of an adaptive run, with the measured gradient variances. The
// planning is a child process `rehearse plan`, so anybody can repeat it from the files that it
// leaves.
#pragma once
#include <string>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/job/job.h"
#include "engine/planner/policy.h"

namespace rehearse::cli {

/// Replaces the gradient variances of `model` in `into` by `variances`.
void replace_variances(costs::Profile& into, const std::string& model,
                       const std::vector<tensors::LayerVariance>& variances);

/// The function that rank 0 calls after warm-up to get the next plan. `path`: the job file. `set`:
/// the --set options of the command line. The function writes warm-up.profile.json and plan.toml
/// into train.out, or into a temporary folder when train.out is empty. It throws BackendError when
/// planning fails or takes longer than adaptive.plan_timeout.
planner::ReplaceOnce::Decide decide_after_warm_up(const job::Job& job, const std::string& path,
                                                  const std::vector<std::string>& set);

}  // namespace rehearse::cli
