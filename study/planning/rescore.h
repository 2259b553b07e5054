// Scores a finalist of the planner again with a fluid simulation, which has contention and the
// job's disturbances.
#pragma once
#include <functional>

#include "engine/costs/profile.h"
#include "engine/job/job.h"
#include "engine/plan/plan.h"

namespace rehearse::study {

/// Returns a function from a plan to its mean step time in seconds, over a few steps of one run.
/// The run has a seed of its own, so that a later `simulate` draws other random numbers than the
/// planner saw. The function returns NaN for a plan that is too large to simulate in a search.
/// Returns an empty function when this build has no SimGrid. `job` and `profile` (or null) must
/// outlive the function.
std::function<double(const plan::Plan&)> fluid_rescore(const job::Job& job,
                                                       const costs::Profile* profile);

}  // namespace rehearse::study
