// What a change of plan will take: the migration between a job's first plan and its own, linked,
// planned in memory and played on the cluster.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/study/study.h"
#include "engine/plan/plan.h"

namespace rehearse::cli {

struct MigrationStudy {
  std::string from = {};                 // method of the first plan
  std::vector<program::Axis> mesh = {};  // ... and its mesh
  std::int64_t after_step = 0;           // how long it is followed
  double seconds = 0;                    // of the migration
  double bytes = 0, bytes_most = 0;      // sent: all ranks together, the rank that sends most
  std::vector<planner::DeviceNeed> memory = {};  // with the states of both plans there
};

/// `job` has the plan that follows. `trace`: file of its Chrome trace; empty: none. Throws
/// InputError when it cannot follow or does not fit.
MigrationStudy study_migration(const job::Job& job, const plan::Plan& first, Level level,
                               const std::string& trace = {});
/// Throws that InputError alone, without a simulation.
void check_migration(const job::Job& job, const plan::Plan& first);
/// "step.json" -> "step.migration.json".
std::string migration_trace(const std::string& trace);

nlohmann::ordered_json to_json(const MigrationStudy& study);
/// One line for people.
std::string describe(const MigrationStudy& study);

}  // namespace rehearse::cli
