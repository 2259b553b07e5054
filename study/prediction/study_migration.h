// Predicts a change of plan: the migration from a job's first plan to its own plan is linked,
// checked against memory and run on the cluster's model.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "study/prediction/study.h"

namespace rehearse::study {

struct MigrationStudy {
  std::string from = {};                 // method of the first plan
  std::vector<program::Axis> mesh = {};  // mesh of the first plan
  std::int64_t after_step = 0;           // number of steps under the first plan
  double seconds = 0;                    // duration of the migration
  double bytes = 0, bytes_most = 0;      // bytes sent by all ranks, and by the rank that sends most
  std::vector<planner::DeviceNeed> memory = {};  // while the states of both plans exist
};

/// Predicts the migration from `first` to the plan of `job`. `trace`: file for the Chrome trace of
/// the migration; empty: none. Throws InputError when the migration is impossible or does not fit
/// into memory.
MigrationStudy study_migration(const job::Job& job, const plan::Plan& first, Fidelity fidelity,
                               const std::string& trace = {});
/// Throws the InputError of study_migration, without a simulation.
void check_migration(const job::Job& job, const plan::Plan& first);
/// "step.json" -> "step.migration.json".
std::string migration_trace(const std::string& trace);

nlohmann::ordered_json to_json(const MigrationStudy& study);
/// One line of text.
std::string describe(const MigrationStudy& study);

}  // namespace rehearse::study
