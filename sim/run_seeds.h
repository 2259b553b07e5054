// Simulates one program under several seeds, in parallel on this machine's cores. The runs differ
// in the seed alone.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/costs/costs.h"
#include "engine/execution/measure/metrics.h"
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
  int seeds = 5;  // how many; seed i is disturbance.seed + i
  int samples_per_step = 0;
  execution::Steps steps = {};
  execution::Stopping stopping = {};  // when the run of a seed is enough
  SimOptions sim = {};
  ProcessOptions processes = {};
  /// Makes one more sink for the run of seed i, such as a trace writer, in the run's process. May
  /// return null.
  std::function<std::unique_ptr<execution::TraceSink>(int i)> sink = {};
};

/// One entry per seed, in order. Equal arguments give equal results, however many runs are
/// parallel. Throws what simulate and in_processes throw.
std::vector<SeedRun> run_seeds(const link::OrderedProgram& linked, const model::ModelSpec& model,
                               const cluster::Cluster& cluster, const costs::Costs& costs,
                               const cluster::Disturbance& disturbance, const SeedOptions& options);

}  // namespace rehearse::sim
