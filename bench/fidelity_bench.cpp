// How far the three fidelities are apart, and what each costs: one step time by the dry run
// (nothing contends but the transfers of one op), by fluid flows, and by every chunk of every
// collective. docs/simulator.md quotes the table.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/costs.h"
#include "engine/execution/dry_run.h"
#include "engine/methods/strategy.h"
#include "engine/model/model.h"
#include "sim/executor.h"
#include "sim/processes.h"

namespace {

using namespace rehearse;

constexpr int steps = 4;

struct Ignore : TraceSink {
  void record(Id, Id, int, Id, std::span<const double>, std::span<const double>) override {}
};

struct Case {
  std::string what = {}, model = {}, cluster = {};
  Plan plan = {};
};

struct Row {
  double step = 0, wall = 0;
};

/// Mean step time of a run without disturbance, and wall seconds a step.
template <class F>
Row timed(F run) {
  const auto begin = std::chrono::steady_clock::now();
  const double seconds = run();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  return {seconds / steps, wall.count() / steps};
}

Row simulated(const LinkedProgram& linked, const Costs& costs, const Cluster& cluster,
              const Disturber& quiet, Fidelity fidelity) {
  return timed([&] {
    return std::stod(in_processes(1, [&](int) {
      Ignore sink;
      return fmt::format(
          "{:.17g}",
          simulate(linked, costs, cluster, quiet, steps, sink, {.fidelity = fidelity}).seconds);
    })[0]);
  });
}

void print(const Case& one) {
  const ModelSpec model = load_model(one.model, 0);
  const Cluster cluster = load_cluster(one.cluster);
  const LinkedProgram linked = link(compile(one.plan, model));
  const Costs costs(linked, model, cluster, {});
  const Disturber quiet({}, linked.program.world_size);
  const Row dry = timed([&] {
    Ignore sink;
    return dry_run(linked, costs, quiet, steps, sink).seconds;
  });
  const Row fluid = simulated(linked, costs, cluster, quiet, Fidelity::fluid);
  const Row chunk = simulated(linked, costs, cluster, quiet, Fidelity::chunk);
  fmt::print("| {} | {} | {} | {:.2f} | {:+.1f}% | {:+.1f}% | {:.0f} | {:.0f} |\n", one.cluster,
             one.model, one.what, 1e3 * chunk.step, 100 * (dry.step / chunk.step - 1),
             100 * (fluid.step / chunk.step - 1), 1e3 * fluid.wall, 1e3 * chunk.wall);
  std::fflush(stdout);
}

}  // namespace

int main() {
  std::vector<Case> cases;
  const struct {
    Algorithm algorithm;
    const char* name;
  } algorithms[] = {{Algorithm::ring, "ring"},
                    {Algorithm::hierarchical, "hierarchical"},
                    {Algorithm::halving_doubling, "halving_doubling"},
                    {Algorithm::double_tree, "double_tree"}};
  for (const auto& [algorithm, name] : algorithms) {
    cases.push_back({fmt::format("ddp, {}", name),
                     "bert-paper-110m",
                     "paper",
                     {.method = "ddp", .dp = 32, .global_batch = 256, .collective = algorithm}});
    cases.push_back({fmt::format("ddp, {}", name),
                     "bert-paper-110m",
                     "paper-homogeneous",
                     {.method = "ddp", .dp = 32, .global_batch = 256, .collective = algorithm}});
    cases.push_back(
        {fmt::format("dp 16 x tp 2, {}", name),
         "bert-large",
         "paper-homogeneous",
         {.method = "megatron", .dp = 16, .tp = 2, .global_batch = 256, .collective = algorithm}});
  }
  cases.push_back({"zero3, automatic",
                   "bert-large",
                   "paper-homogeneous",
                   {.method = "zero3", .dp = 32, .global_batch = 256}});
  cases.push_back({"1f1b pp 4 x dp 8, automatic",
                   "gpt2-1.5b",
                   "dgx-a100:4",
                   {.method = "1f1b", .pp = 4, .dp = 8, .global_batch = 128, .micro_batches = 8}});
  cases.push_back({"topk-sync",
                   "bert-paper-110m",
                   "paper",
                   {.method = "topk-sync", .dp = 32, .global_batch = 256}});
  cases.push_back({"ps-async, 8 workers",
                   "bert-paper-110m",
                   "paper",
                   {.method = "ps-async", .dp = 8, .servers = 4, .global_batch = 64}});
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
