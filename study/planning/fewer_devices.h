// Whether a job is faster without one kind of its devices, or as fast and cheaper. The planner
// gives every device of a job work, and a slow device may cost more than it brings: it paces
// collectives, and its memory limits what all ranks hold.
#pragma once
#include <string>

#include "engine/costs/profile.h"
#include "engine/job/job.h"
#include "engine/plan/decision.h"
#include "engine/planner/planner.h"

namespace rehearse::study {

/// Plans the job again without each kind of its devices. The fastest of these plans as advice, with
/// the key that leaves the devices out, if it is faster by more than planner::plainer_within; else
/// the cheapest that is as fast and costs less an hour. Empty: there is neither, or the job itself
/// says which devices it uses. `decision`: that of the job, with the same options.
std::string better_with_fewer(const job::Job& job, const plan::Decision& decision,
                              const costs::Profile* profile,
                              const planner::PlannerOptions& options);

}  // namespace rehearse::study
