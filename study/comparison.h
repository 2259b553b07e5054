// One job under several methods: the rows of `rehearse compare`.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "engine/plan/decision.h"
#include "study/load.h"
#include "study/methods.h"
#include "study/prediction/study.h"

namespace rehearse::study {

struct ComparedMethod {
  MethodChoice choice = {};
  std::optional<job::Job> job = {};  // none: the method cannot run it
  std::optional<Study> study = {};
  std::optional<plan::Decision> decided = {};  // of a method whose plan the planner chooses
  std::string refusal = {};                    // why the method cannot run the job
  std::string brief = {};                      // the same for a table
  std::vector<std::string> changes = {};       // that make its plan fit into memory, if it does not
};

/// `list`: as after --methods (methods.h). "all" adds a row for the job's plan file, and one with
/// method.shares=speed where replicas differ in speed. Throws InputError when the list or the job
/// itself is wrong, before any row is predicted. `fit`: a row that does not fit into memory is
/// predicted with the changes that make it fit, if they leave method and batch as they are.
std::vector<ComparedMethod> compare_methods(const JobSource& source, const std::string& list,
                                            const StudyOptions& options, bool fit = false);

}  // namespace rehearse::study
