// Two jobs side by side: what differs in what they state and in the plans that follow, what that
// costs, and where in the step the cost comes up. `rehearse diff` shows it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/execution/explain/explain.h"
#include "study/load.h"
#include "study/prediction/study.h"

namespace rehearse::study {

/// A key whose values differ, as TOML. Empty: the job does not state the key, or the plan has none.
struct KeyDifference {
  std::string key = {}, a = {}, b = {};
};

struct Side {
  std::string name = {};  // the job's file
  Study study = {};
  execution::Explanation explanation = {};
};

struct Difference {
  std::vector<KeyDifference> job = {};   // of what the files and --set state
  std::vector<KeyDifference> plan = {};  // of the plans, without what `job` has already
  Side a = {}, b = {};
};

/// Predicts and explains both jobs. Throws InputError, which names the job that it is about.
Difference difference_of(const JobSource& a, const JobSource& b, const StudyOptions& options);

std::string describe(const Difference& difference);
/// The JSON of `rehearse diff`, documented in docs/cli.md.
nlohmann::ordered_json to_json(const Difference& difference);

}  // namespace rehearse::study
