// A plan as one rank of a run has it: linked program, memory, executor. A run may go through
// several; between two of them the state migrates (engine/migration/migration.h).
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
#include "runtime/execution/executor.h"
#include "runtime/execution/trace_file.h"

namespace rehearse::runtime {

/// A plan before there are tensors: compiled, linked, and which rank each process plays. `devices`:
/// those of the processes.
struct LinkedPlan {
  LinkedPlan(const job::Job& base, plan::Plan plan, const std::vector<Id>& devices);
  LinkedPlan(const LinkedPlan&) = delete;
  LinkedPlan& operator=(const LinkedPlan&) = delete;

  job::Job job;
  link::LinkedProgram linked;
  std::vector<Id> plays = {};  // by process
};

/// What all plans of a run share.
struct RunParts {
  const Data& data;
  Network& network;
  Control& control;
  std::vector<Id> devices;  // of the processes
  TraceFile* trace;         // null: nothing is traced
};

struct PlacedPlan {
  /// `number`: how many plans the run has had before. State is allocated, and not yet filled.
  PlacedPlan(std::shared_ptr<const LinkedPlan> linked_plan, int number, const RunParts& parts);
  PlacedPlan(const PlacedPlan&) = delete;
  PlacedPlan& operator=(const PlacedPlan&) = delete;

  std::shared_ptr<const LinkedPlan> plan;
  int number;
  cluster::Disturber disturber;
  ExecutorContext context;
  Executor executor;
};

/// What a migration took.
struct MigrationRun {
  bool ran = false;  // false: the run ends before it
  double seconds = 0;
  std::int64_t sent_by_rank = 0, sent_bytes = 0;  // by this rank; by all
};

/// Brings the state before step `step` from one plan to the next. Every rank calls it.
MigrationRun migrate_state(PlacedPlan& from, PlacedPlan& to, std::int64_t step,
                           const RunParts& parts);

}  // namespace rehearse::runtime
