// Planning as commands do it: the profile read, a progress bar, the best candidates simulated
// again, the outcome as text or JSON.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/study/study.h"
#include "engine/job/job.h"
#include "engine/planner/planner.h"

namespace rehearse::cli {

struct PlanFlags {
  int budget = 0;
  bool rescore = true;       // by fluid simulation
  Teller* teller = nullptr;  // none: says nothing
};

/// Throws InputError when no plan is feasible.
plan::Decision decide_with_progress(const job::Job& job, const PlanFlags& flags);
/// A job as load() leaves it becomes one that runs: where its plan is open it is decided.
std::optional<plan::Decision> decide_plan(job::Job& job, Teller* teller);

/// What to beware of in a decided plan stands beside what its study warns of.
void add_warnings(const plan::Decision& decision, Study& study);

/// The plan file.
std::string plan_text(const plan::Decision& decision, const job::Job& job);
/// The JSON of `plan`, documented in docs/cli.md.
nlohmann::ordered_json to_json(const plan::Decision& decision, const job::Job& job);
/// Of what, plan, prediction, counts, warnings.
std::string brief(const plan::Decision& decision, const job::Job& job);
/// The whole decision.
std::string explain(const plan::Decision& decision, const job::Job& job);

}  // namespace rehearse::cli
