// When the steps of a run end under a fault trace, for several seeds, each in a process of its own.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/cluster/disturbance.h"
#include "engine/execution/dry_run/fault_run.h"
#include "sim/executor.h"
#include "sim/processes.h"

namespace rehearse::sim {

struct FaultRunOptions {
  int seeds = 1, steps = 0;
  int ahead = 4;          // steps that are begun beyond (execution::Steps)
  bool at_period = true;  // nothing is random, so that steps may repeat
  SimOptions sim = {};
  ProcessOptions processes = {};
  execution::FaultDetection detection = {};
  /// Makes the trace writer of the run of seed i, in the run's process. May return null.
  std::function<std::unique_ptr<execution::ChromeTrace>(int i)> chrome = {};
};

/// One entry per seed. `trace` null: nothing breaks. Throws what simulate and in_processes throw.
std::vector<execution::FaultRun> run_with_faults(const link::OrderedProgram& linked,
                                                 const cluster::Cluster& cluster,
                                                 const costs::Costs& costs,
                                                 const cluster::Disturbance& disturbance,
                                                 const faults::Trace* trace,
                                                 const FaultRunOptions& options);

}  // namespace rehearse::sim
