// From the command line to a job.
#pragma once
#include <optional>
#include <string>

#include "cli/console/context.h"
#include "engine/costs/profile.h"
#include "engine/job/job.h"

namespace rehearse::cli {

/// The job with the command line's --set. Of the adaptive method the plan is left open, for
/// decide_plan (decision.h).
job::Job load(const std::string& path, const std::vector<std::string>& set);
/// The same for a run of `ranks` processes: where neither the file nor --set says how many ranks
/// the world has, a cluster whose ranks share a host's cores gets that many.
job::Job load_for(const Context& context, const std::string& path, int ranks);
/// What the job's cluster.profile names, if it names one. Throws InputError when it is of another
/// cluster.
std::optional<costs::Profile> profile_of(const job::Job& job);

}  // namespace rehearse::cli
