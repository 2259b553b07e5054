// A plan with all that one rank needs to run it: linked program, memory, executor. A run may change
// its plan; the state then migrates from one PlacedPlan to the next (engine/migration/migration.h).
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cluster/disturbance.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "runtime/communication/network.h"
#include "runtime/control/control.h"
#include "runtime/data/data.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/trace_file.h"

namespace rehearse::runtime {

/// A plan that is compiled and linked, without tensors. `devices`: of the processes, by process.
/// Throws InputError when the plan does not fit into the devices' memory.
struct LinkedPlan {
  LinkedPlan(const job::Job& base, plan::Plan plan, const std::vector<Id>& devices);
  LinkedPlan(const LinkedPlan&) = delete;
  LinkedPlan& operator=(const LinkedPlan&) = delete;

  job::Job job;
  link::LinkedProgram linked;
  std::vector<Id> plays = {};  // by process: the rank that it plays
};

/// What all plans of a run share.
struct RunParts {
  const Data& data;
  Network& network;
  Control& control;
  Device& device;                   // of this process
  std::vector<Id> devices;          // by process: its device
  TraceFile* trace;                 // null: no trace
  FaultInjector* faults = nullptr;  // null: none
};

struct PlacedPlan {
  /// `number`: how many plans the run has had before. Allocates the state and does not fill it.
  PlacedPlan(std::shared_ptr<const LinkedPlan> linked_plan, int number, const RunParts& parts);
  PlacedPlan(const PlacedPlan&) = delete;
  PlacedPlan& operator=(const PlacedPlan&) = delete;

  std::shared_ptr<const LinkedPlan> plan;
  int number;
  cluster::Disturber disturber;
  ExecutorContext context;
  Executor executor;
};

/// Duration and traffic of a migration.
struct MigrationRun {
  bool ran = false;  // false: the run ended before the migration
  double seconds = 0;
  std::int64_t sent_by_rank = 0, sent_bytes = 0;  // by this rank; by all
};

/// Moves the state as it is before step `step` from one plan to the next. Every rank calls it.
MigrationRun migrate_state(PlacedPlan& from, PlacedPlan& to, std::int64_t step,
                           const RunParts& parts);

}  // namespace rehearse::runtime
