// What a report shows of a plan: devices and stages and each compressed layer (plots/placement.py),
// and a step of the fastest method without it beside a step with it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/console/files.h"
#include "cli/study/rehearsal.h"
#include "engine/costs/profile.h"
#include "engine/job/job.h"

namespace rehearse::cli {

/// docs/report.md: "Placement". `profile` (or none) has the variances.
nlohmann::ordered_json placement_json(const job::Job& job, const costs::Profile* profile);

/// The inputs of plots/report.py for the job's plan, whose step is traced in `trace`; those that
/// are not yet files are written into the folder. `against`: has the traces of its baselines there,
/// under "before-METHOD.json".
std::vector<std::string> plan_pictures(const job::Job& job, const Rehearsal& against,
                                       const TemporaryFolder& folder, const std::string& trace);
/// What finish_rehearsal needs for that.
std::string baseline_traces(const TemporaryFolder& folder);

}  // namespace rehearse::cli
