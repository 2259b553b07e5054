#include "sim/run_seeds.h"

#include <nlohmann/json.hpp>
#include <utility>

// JSON conversions of what a child process returns. JSON text preserves every bit of a double. The
// library looks for a type's conversions in the type's namespace.
namespace rehearse::execution {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Metrics, step_times, steps_run, period, mean_step, std_step,
                                   robustness, samples_per_s, tokens_per_s, mfu, bubble_fraction,
                                   exposed_comm_s, bytes_sent_mean, bytes_sent_max, bytes_per_step,
                                   joules_per_step, in_time, exposed_exact)
}  // namespace rehearse::execution

namespace rehearse::sim {

static_assert(sizeof(execution::Metrics) == 144, "a new metric must cross too");
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Simulated, seconds, instances, transfers, flows, bypassed)
static_assert(sizeof(Simulated) == 40, "a new figure must cross too");
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SeedRun, metrics, simulated)

std::vector<SeedRun> run_seeds(const link::OrderedProgram& linked, const model::ModelSpec& model,
                               const cluster::Cluster& cluster, const costs::Costs& costs,
                               const cluster::Disturbance& disturbance,
                               const SeedOptions& options) {
  auto one = [&](int i) {
    cluster::Disturbance mine = disturbance;
    mine.seed += static_cast<std::uint64_t>(i);
    const cluster::Disturber disturber(mine, linked.program.world_size);
    execution::MetricsSink metrics(linked, model, cluster, costs, options.samples_per_step,
                                   options.steps, options.stopping);
    std::vector<execution::TraceSink*> sinks = {&metrics};
    const std::unique_ptr<execution::TraceSink> extra = options.sink ? options.sink(i) : nullptr;
    if (extra) sinks.push_back(extra.get());
    execution::Tee tee(sinks);
    SeedRun run;
    run.simulated =
        simulate(linked, costs, cluster, disturber, options.steps.begun(), tee, options.sim);
    if (extra) extra->close();
    run.metrics = metrics.finish();
    return nlohmann::json(run).dump();
  };
  std::vector<SeedRun> runs;
  // What all seeds draw with is made here and not in each of the processes.
  const cluster::Disturber first(disturbance, linked.program.world_size);
  for (const std::string& text : in_processes(options.seeds, one, options.processes))
    runs.push_back(nlohmann::json::parse(text).get<SeedRun>());
  return runs;
}

}  // namespace rehearse::sim
