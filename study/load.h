// Reads a job file with the command line's --set options, and the profile that the job names.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/costs/profile.h"
#include "engine/faults/failure_model.h"
#include "engine/job/job.h"

namespace rehearse::study {

/// Where a job is read from. Kept to read it again with other keys.
struct JobSource {
  /// Its path, or the name of `text` in messages. In angle brackets: a program made the text, and
  /// messages leave out its lines.
  std::string file = {};
  std::optional<std::string> text = {};  // TOML; nothing: the file is read
  std::vector<std::string> set = {};     // --set options, "key.path=value"
};

/// The file with the --set options. Throws InputError.
Config config_of(const JobSource& source);
/// The job, completed. With the adaptive method the plan may stay open; then decide_plan
/// (decision.h) decides it. Throws InputError.
job::Job load(const JobSource& source);
job::Job load(const std::string& path, const std::vector<std::string>& set);
/// The job with the keys of its method left open where the planner chooses them. Throws InputError.
job::Job load_to_plan(const JobSource& source);
/// The job with what its program takes from predicted times: the ends of a coordinator's cycles
/// (planner::with_cycles), the order of pushes (planner::with_push_order). For a job that was not
/// read by `load`, and again when its devices or its software have changed.
job::Job completed(job::Job job);
/// Like load, for a run of `ranks` processes. On a cluster whose ranks share the cores of a host,
/// the world size becomes `ranks` unless the job or --set states it.
job::Job load_for(const std::string& path, const std::vector<std::string>& set, int ranks);
/// The profile at the job's cluster.profile, read at the first call; null when the job names none.
/// It stays as long as the job or a copy of it. Throws InputError when the profile is wrong or
/// belongs to another cluster.
const costs::Profile* profile_of(const job::Job& job);
/// The failure model at the job's faults.model. Throws InputError when there is none of that name,
/// or it is wrong.
faults::FailureModel failure_model_of(const job::Job& job);
/// Adds a warning if run.encrypt is not what the times of communication were measured with.
void warn_of_encryption(const job::Job& job, std::vector<std::string>& warnings);

}  // namespace rehearse::study
