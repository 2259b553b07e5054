// Many simulations of one program that differ in their seed alone, in parallel on this machine's
// cores.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/costs/costs.h"
#include "engine/execution/metrics.h"
#include "engine/link/link.h"
#include "engine/model/model.h"
#include "sim/executor.h"
#include "sim/processes.h"

namespace rehearse::sim {

struct SeedRun {
  execution::Metrics metrics = {};
  Simulated simulated = {};
};

struct SeedOptions {
  int seeds = 5;  // seed i is disturbance.seed + i
  int samples_per_step = 0;
  execution::Steps steps = {};
  SimOptions sim = {};
  ProcessOptions processes = {};
  /// One more sink for the run of seed i (a trace writer), made and destroyed in its process; may
  /// return nothing.
  std::function<std::unique_ptr<execution::TraceSink>(int i)> sink = {};
};

/// One entry a seed, in order; equal arguments give equal results whatever runs in parallel. Throws
/// what simulate and in_processes throw.
std::vector<SeedRun> run_seeds(const link::LinkedProgram& linked, const model::ModelSpec& model,
                               const cluster::Cluster& cluster, const costs::Costs& costs,
                               const cluster::Disturbance& disturbance, const SeedOptions& options);

}  // namespace rehearse::sim
