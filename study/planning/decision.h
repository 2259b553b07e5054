// Planning for commands: reads the profile, shows progress, simulates the best candidates again,
// and prints the decision as text or JSON.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/job/job.h"
#include "engine/planner/planner.h"
#include "study/prediction/study.h"
#include "study/progress.h"

namespace rehearse::study {

struct PlanFlags {
  int budget = 0;                // candidates to dry-run at most; 0: no limit
  bool rescore = true;           // simulate the best candidates again (fluid)
  bool fewer_devices = false;    // warn where a plan without some devices is faster
  Progress* progress = nullptr;  // null: nobody listens
};

/// Plans the job. Throws InputError when no plan is feasible.
plan::Decision decide_with_progress(const job::Job& job, const PlanFlags& flags);
/// If the job leaves its plan open (the adaptive method without a plan file), decides the plan,
/// stores it in the job and returns the decision. Otherwise returns nothing.
std::optional<plan::Decision> decide_plan(job::Job& job, Progress* progress);

/// Adds the decision's warnings to the study's.
void add_warnings(const plan::Decision& decision, Study& study);

/// The plan in one line; then for each choice its value, and by how much the fastest plans with
/// other values are slower, without contention, or why no plan with such a value was tried.
std::string choices_text(const plan::Decision& decision);
/// The same as JSON, with all other values: `choices` of `rehearse plan` (docs/cli.md).
nlohmann::ordered_json choices_json(const plan::Decision& decision);
/// The text of the plan file (TOML).
std::string plan_text(const plan::Decision& decision, const job::Job& job);
/// The JSON of `rehearse plan`, documented in docs/cli.md.
nlohmann::ordered_json to_json(const plan::Decision& decision, const job::Job& job);
/// A few lines: model, cluster, plan, predicted step time, number of candidates, warnings.
std::string brief(const plan::Decision& decision, const job::Job& job);
/// The whole decision with its reasons, for --explain.
std::string explain(const plan::Decision& decision, const job::Job& job);

}  // namespace rehearse::study
