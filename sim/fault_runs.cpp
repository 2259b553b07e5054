#include "sim/fault_runs.h"

namespace rehearse::sim {

std::vector<execution::FaultRun> run_with_faults(const link::OrderedProgram& linked,
                                                 const cluster::Cluster& cluster,
                                                 const costs::Costs& costs,
                                                 const cluster::Disturbance& disturbance,
                                                 const faults::Trace* trace,
                                                 const FaultRunOptions& options) {
  auto one = [&](int i) {
    cluster::Disturbance mine = disturbance;
    mine.seed += static_cast<std::uint64_t>(i);
    const cluster::Disturber disturber(mine, linked.program.world_size);
    std::optional<execution::FaultReplay> replay;
    if (trace != nullptr)
      replay.emplace(*trace, linked.program, cluster, costs.rank_to_device(), options.detection);
    execution::FaultReplay* const faults = replay ? &*replay : nullptr;
    execution::StepEnds steps(linked, options.steps, options.at_period, faults);
    std::vector<execution::TraceSink*> sinks = {&steps};
    const std::unique_ptr<execution::ChromeTrace> chrome =
        options.chrome ? options.chrome(i) : nullptr;
    if (chrome) sinks.push_back(chrome.get());
    execution::Tee tee(sinks);
    SimOptions how = options.sim;
    how.faults = faults;
    simulate(linked, costs, cluster, disturber, options.steps + options.ahead, tee, how);
    if (chrome && faults != nullptr) mark_events(*chrome, *faults);
    if (chrome) chrome->close();
    return to_json(run_of(steps, faults));
  };
  std::vector<execution::FaultRun> runs;
  for (const std::string& text : in_processes(options.seeds, one, options.processes))
    runs.push_back(execution::fault_run_of(text));
  return runs;
}

}  // namespace rehearse::sim
