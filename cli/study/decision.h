// Planning as commands do it: the profile read, a progress bar, the best candidates simulated
// again, the outcome as text or JSON.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/study/study.h"
#include "engine/job/job.h"
#include "engine/planner/planner.h"

namespace rehearse {

struct PlanFlags {
  int budget = 0;
  bool rescore = true;       // by fluid simulation
  Teller* teller = nullptr;  // none: says nothing
};

/// Throws InputError when no plan is feasible.
Decision decide_with_progress(const Job& job, const PlanFlags& flags);
/// A job as load() leaves it becomes one that runs: where its plan is open it is decided.
std::optional<Decision> decide_plan(Job& job, Teller* teller);

/// What to beware of in a decided plan stands beside what its study warns of.
void add_warnings(const Decision& decision, Study& study);

/// The plan file.
std::string plan_text(const Decision& decision, const Job& job);
/// The JSON of `plan`, documented in docs/cli.md.
nlohmann::ordered_json to_json(const Decision& decision, const Job& job);
/// Of what, plan, prediction, counts, warnings.
std::string brief(const Decision& decision, const Job& job);
/// The whole decision.
std::string explain(const Decision& decision, const Job& job);

}  // namespace rehearse
