// The pictures of a plan in a report: its devices, stages and compressed layers
// (plots/placement.py), and the trace of the fastest baseline beside the trace of the plan.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/console/files.h"
#include "engine/costs/profile.h"
#include "engine/job/job.h"
#include "study/planning/rehearsal.h"

namespace rehearse::cli {

/// The JSON of docs/report.md, "Placement". `profile`: its variances are shown; null: none.
nlohmann::ordered_json placement_json(const job::Job& job, const costs::Profile* profile);

/// The arguments of plots/report.py for the job's plan. Writes placement.json into `folder`.
/// `trace`: the file with the trace of the plan's step. `against`: a rehearsal whose baselines were
/// traced into `folder`, as "before-METHOD.json".
std::vector<std::string> plan_pictures(const job::Job& job, const study::Rehearsal& against,
                                       const TemporaryFolder& folder, const std::string& trace);
/// The `traces` argument of finish_rehearsal that makes those files.
std::string baseline_traces(const TemporaryFolder& folder);

}  // namespace rehearse::cli
