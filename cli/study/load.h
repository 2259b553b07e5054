// Reads a job file with the command line's --set options, and the profile that the job names.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/console/context.h"
#include "engine/costs/profile.h"
#include "engine/job/job.h"

namespace rehearse::cli {

/// The job at `path` with the --set options. With the adaptive method the plan may stay open; then
/// decide_plan (decision.h) decides it. Throws InputError.
job::Job load(const std::string& path, const std::vector<std::string>& set);
/// The job with what its program takes from predicted times: the ends of a coordinator's cycles
/// (planner::with_cycles), the order of pushes (planner::with_push_order). For a job that was not
/// read by `load`, and again when its devices or its software have changed.
job::Job completed(job::Job job);
/// Like load, for a run of `ranks` processes. On a cluster whose ranks share the cores of a host,
/// the world size becomes `ranks` unless the job or --set states it.
job::Job load_for(const Context& context, const std::string& path, int ranks);
/// The profile at the job's cluster.profile; nothing when the job names none. Throws InputError
/// when the profile is wrong or belongs to another cluster.
std::optional<costs::Profile> profile_of(const job::Job& job);
/// Adds a warning if run.encrypt is not what the times of communication were measured with.
void warn_of_encryption(const job::Job& job, const std::optional<costs::Profile>& profile,
                        std::vector<std::string>& warnings);

}  // namespace rehearse::cli
