// Compares the step times of the three fidelities, and the wall time that fluid and chunk need.
// Analytic: the dry run, in which only the transfers of one op contend. Fluid: one flow per pair
// and phase. Chunk: every transfer of every round. docs/simulator.md quotes the table.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/costs.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/methods/strategy.h"
#include "engine/model/model.h"
#include "sim/executor.h"
#include "sim/processes.h"

namespace {

using namespace rehearse;

constexpr int steps = 4;

struct Ignore : execution::TraceSink {
  void record(Id, Id, int, Id, std::span<const double>, std::span<const double>) override {}
};

struct Case {
  std::string what = {}, model = {}, cluster = {};
  plan::Plan plan = {};
};

struct Row {
  double step = 0, wall = 0;  // simulated seconds per step, wall-clock seconds per step
};

/// `run` simulates `steps` steps and returns their seconds.
template <class F>
Row timed(F run) {
  const auto begin = std::chrono::steady_clock::now();
  const double seconds = run();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  return {seconds / steps, wall.count() / steps};
}

Row simulated(const link::LinkedProgram& linked, const costs::Costs& costs,
              const cluster::Cluster& cluster, const cluster::Disturber& quiet,
              sim::Fidelity fidelity) {
  return timed([&] {
    return std::stod(sim::in_processes(1, [&](int) {
      Ignore sink;
      return fmt::format("{:.17g}", sim::simulate(linked, costs, cluster, quiet, steps, sink,
                                                  {.fidelity = fidelity})
                                        .seconds);
    })[0]);
  });
}

void print(const Case& one) {
  const model::ModelSpec model = model::load_model(one.model, 0);
  const cluster::Cluster cluster = cluster::load_cluster(one.cluster);
  const link::LinkedProgram linked = link::link(methods::compile(one.plan, model));
  const costs::Costs costs(linked, model, cluster, {});
  const cluster::Disturber quiet({}, linked.program.world_size);
  const Row dry = timed([&] {
    Ignore sink;
    return dry_run(linked, costs, quiet, steps, sink).seconds;
  });
  const Row fluid = simulated(linked, costs, cluster, quiet, sim::Fidelity::fluid);
  const Row chunk = simulated(linked, costs, cluster, quiet, sim::Fidelity::chunk);
  fmt::print("| {} | {} | {} | {:.2f} | {:+.1f}% | {:+.1f}% | {:.0f} | {:.0f} |\n", one.cluster,
             one.model, one.what, 1e3 * chunk.step, 100 * (dry.step / chunk.step - 1),
             100 * (fluid.step / chunk.step - 1), 1e3 * fluid.wall, 1e3 * chunk.wall);
  std::fflush(stdout);
}

}  // namespace

int main() {
  std::vector<Case> cases;
  const struct {
    program::Algorithm algorithm;
    const char* name;
  } algorithms[] = {{program::Algorithm::ring, "ring"},
                    {program::Algorithm::hierarchical, "hierarchical"},
                    {program::Algorithm::halving_doubling, "halving_doubling"},
                    {program::Algorithm::double_tree, "double_tree"}};
  for (const auto& [algorithm, name] : algorithms) {
    cases.push_back({fmt::format("ddp, {}", name),
                     "bert-paper-110m",
                     "paper",
                     {.method = "ddp",
                      .mesh = {.dp = 32},
                      .schedule = {.global_batch = 256},
                      .exchange = {.collective = algorithm}}});
    cases.push_back({fmt::format("ddp, {}", name),
                     "bert-paper-110m",
                     "paper-homogeneous",
                     {.method = "ddp",
                      .mesh = {.dp = 32},
                      .schedule = {.global_batch = 256},
                      .exchange = {.collective = algorithm}}});
    cases.push_back({fmt::format("dp 16 x tp 2, {}", name),
                     "bert-large",
                     "paper-homogeneous",
                     {.method = "megatron",
                      .mesh = {.dp = 16, .tp = 2},
                      .schedule = {.global_batch = 256},
                      .exchange = {.collective = algorithm}}});
  }
  cases.push_back({"zero3, automatic",
                   "bert-large",
                   "paper-homogeneous",
                   {.method = "zero3", .mesh = {.dp = 32}, .schedule = {.global_batch = 256}}});
  cases.push_back({"1f1b pp 4 x dp 8, automatic",
                   "gpt2-1.5b",
                   "dgx-a100:4",
                   {.method = "1f1b",
                    .mesh = {.pp = 4, .dp = 8},
                    .schedule = {.global_batch = 128, .micro_batches = 8}}});
  cases.push_back({"topk-sync",
                   "bert-paper-110m",
                   "paper",
                   {.method = "topk-sync", .mesh = {.dp = 32}, .schedule = {.global_batch = 256}}});
  cases.push_back(
      {"ps-async, 8 workers",
       "bert-paper-110m",
       "paper",
       {.method = "ps-async", .mesh = {.dp = 8, .servers = 4}, .schedule = {.global_batch = 64}}});
  try {
    fmt::print(
        "| cluster | model | method, collective | chunk, ms a step | analytic | fluid | fluid, "
        "wall "
        "ms a step | chunk, wall ms a step |\n|---|---|---|---|---|---|---|---|\n");
    for (const Case& one : cases) print(one);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
