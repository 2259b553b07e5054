// How the CLI scores a finalist of the planner again: a fluid simulation, where channels contend
// and the job's disturbances act.
#pragma once
#include <functional>

#include "engine/costs/profile.h"
#include "engine/job/job.h"
#include "engine/plan/plan.h"

namespace rehearse::cli {

/// Mean step time over a few steps of one run, whose seed is the planner's own: what `simulate` and
/// a test draw afterwards, the planner has not seen. Not a number for plans too large to simulate
/// in a search. Empty where this build has no SimGrid.
std::function<double(const plan::Plan&)> fluid_rescore(const job::Job& job,
                                                       const costs::Profile* profile);

}  // namespace rehearse::cli
