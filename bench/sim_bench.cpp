// Measures the speed of the simulator in three cases, with contention, jitter and metrics: a
// data-parallel step of the paper's model on 32 ranks (fluid); a step of GPT-3 175B on 1,024 ranks
// with pp 16 x dp 8 x tp 8 and 64 micro-batches of 1F1B (fluid); a data-parallel step of GPT-2 124M
// on 256 ranks with ring all-reduces (chunk).
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <exception>
#include <string>

#include "bench/figure.h"
#include "engine/cluster/cluster.h"
#include "engine/costs/costs.h"
#include "engine/execution/measure/metrics.h"
#include "engine/methods/strategy.h"
#include "engine/model/model.h"
#include "sim/executor.h"
#include "sim/processes.h"

namespace {

using namespace rehearse;

double now() {
  const std::chrono::duration<double> since = std::chrono::steady_clock::now().time_since_epoch();
  return since.count();
}

/// CPU seconds of this process.
double on_core() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Case {
  std::string name = {}, model = {}, cluster = {};
  plan::Plan plan = {};
  int steps = 1;
  double target = 0;  // goal in seconds per step; 0: none
  sim::Fidelity fidelity = sim::Fidelity::fluid;
};

/// Simulates one case and returns the text to print.
std::string measure(const Case& one) {
  double mark = now();
  auto lap = [&mark] {
    const double before = mark;
    mark = now();
    return mark - before;
  };
  const model::ModelSpec model = model::load_model(one.model, 0);
  const cluster::Cluster cluster = cluster::load_cluster(one.cluster);
  const link::LinkedProgram linked = link::link(methods::compile(one.plan, model));
  const double linking = lap();
  const costs::Costs costs(linked, model, cluster, {});
  const double costing = lap();
  const cluster::Disturber disturber({.compute_sigma = 0.02, .link_sigma = 0.02},
                                     linked.program.world_size);
  execution::MetricsSink metrics(linked, model, cluster, costs, one.plan.schedule.global_batch,
                                 {.warm_up = 0, .steady = one.steps});
  const double before = on_core();
  const sim::Simulated simulated = sim::simulate(linked, costs, cluster, disturber, one.steps,
                                                 metrics, {.fidelity = one.fidelity});
  const double simulating = lap();
  const double cpu = on_core() - before;
  const execution::Metrics result = metrics.finish();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  bench::record(
      {.name = fmt::format("simulated step, {}, {} ranks", one.name, linked.program.world_size),
       .measured = 1e3 * simulating / one.steps,
       .unit = "ms",
       .against = one.target == 0 ? "" : "goal",
       .reference = 1e3 * one.target});
  const std::string target =
      one.target == 0 ? ""
                      : fmt::format("; target {:g} ms{}", 1e3 * one.target,
                                    simulating / one.steps <= one.target ? "" : ", MISSED");
  return fmt::format(
      "{}: {} ranks, {} steps: {:.1f} ms a step ({:.1f} on the core{}); {:.3g} ops, {} flows, {} "
      "exchanges bypassed, {:.0f} MB\n  compile and link {:.0f} ms, costs {:.0f} ms; simulated "
      "step "
      "time {:.4f} s, bubble {:.3f}, exposed {:.4f} s{}",
      one.name, linked.program.world_size, one.steps, 1e3 * simulating / one.steps,
      1e3 * cpu / one.steps, target, static_cast<double>(simulated.instances), simulated.flows,
      simulated.bypassed, static_cast<double>(usage.ru_maxrss) / 1024, 1e3 * linking, 1e3 * costing,
      result.mean_step, result.bubble_fraction, result.exposed_comm_s,
      result.exposed_exact ? "" : " or more");
}

}  // namespace

int main() {
  const Case cases[] = {
      {.name = "paper's model, ddp",
       .model = "bert-paper-110m",
       .cluster = "paper",
       .plan = {.method = "ddp", .mesh = {.dp = 32}, .schedule = {.global_batch = 512}},
       .steps = 20,
       .target = 0.05},
      {.name = "GPT-3 175B, 1F1B",
       .model = "gpt3-175b",
       .cluster = "dgx-a100:128",
       .plan = {.method = "1f1b",
                .mesh = {.pp = 16, .dp = 8, .tp = 8},
                .schedule = {.global_batch = 512, .micro_batches = 64},
                .precision = program::DType::bf16},
       .steps = 1,
       .target = 30},
      {.name = "GPT-2 124M, ddp, every chunk of every ring",
       .model = "gpt2-124m",
       .cluster = "dgx-a100:32",
       .plan = {.method = "ddp",
                .mesh = {.dp = 256},
                .schedule = {.global_batch = 256},
                .exchange = {.collective = program::Algorithm::ring}},
       .fidelity = sim::Fidelity::chunk},
  };
  try {
    for (const Case& one : cases)
      fmt::print("{}\n", sim::in_processes(1, [&](int) { return measure(one); })[0]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
