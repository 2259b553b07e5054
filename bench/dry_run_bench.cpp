// Measures the speed of the dry run: GPT-3 175B on pp 16 x tp 8 x dp 128 = 16,384 ranks, 1F1B with
// 128 micro-batches, jitter on every local op, with metrics and memory plan. Prints instances, CPU
// seconds and the process's peak memory. Arguments: pp tp dp micro-batches steps.
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdlib>
#include <ctime>

#include "bench/figure.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/measure/metrics.h"
#include "engine/methods/passes/passes.h"
#include "engine/methods/strategy.h"

int main(int argc, char** argv) {
  using namespace rehearse;
  using namespace rehearse::bench;
  auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  // CPU seconds of this single-threaded process, which do not depend on other load of the machine.
  auto now = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  auto since = [&](double start) { return now() - start; };
  plan::Plan plan{.method = "1f1b"};
  plan.mesh.pp = argument(1, 16), plan.mesh.tp = argument(2, 8), plan.mesh.dp = argument(3, 128);
  plan.schedule.micro_batches = argument(4, 128);
  plan.schedule.global_batch = plan.mesh.dp * plan.schedule.micro_batches;
  plan.precision = program::DType::bf16;
  const int steps = argument(5, 1);

  auto start = now();
  const model::ModelSpec model = model::load_model("gpt3-175b", 0);
  program::Program program = methods::compile(plan, model);
  double compiled = since(start);

  start = now();
  const cluster::Cluster cluster =
      cluster::load_cluster(fmt::format("dgx-a100:{}", (program.world_size + 7) / 8));
  const double built = since(start);
  start = now();
  program = methods::choose_collectives(std::move(program), cluster, {});
  const double chosen = since(start);
  start = now();
  const link::LinkedProgram linked = link::link(std::move(program));
  compiled += since(start);
  start = now();
  const costs::Costs costs(linked, model, cluster, {});
  const double costed = since(start);

  start = now();
  cluster::Disturbance disturbance;
  disturbance.compute_sigma = 0.05;
  const cluster::Disturber disturber(disturbance, linked.program.world_size);
  execution::MetricsSink sink(linked, model, cluster, costs, plan.schedule.global_batch,
                              {0, steps});
  const execution::DryRun run = dry_run(linked, costs, disturber, steps, sink);
  const execution::Metrics metrics = sink.finish();
  const double ran = since(start);

  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::int64_t memory = 0;
  for (const link::RoleMemory& m : linked.memory) memory = std::max(memory, m.total());
  fmt::print("ranks                 {}\n", linked.program.world_size);
  fmt::print("(rank, op) instances  {}\n", run.instances);
  fmt::print("compile and link      {:.3f} s\n", compiled);
  fmt::print("cluster               {:.3f} s\n", built);
  fmt::print("choice of collectives {:.3f} s\n", chosen);
  fmt::print("costs                 {:.3f} s ({} classes)\n", costed, costs.classes());
  fmt::print("dry run and metrics   {:.3f} s ({:.1f} ns an instance)\n", ran,
             ran * 1e9 / static_cast<double>(run.instances));
  fmt::print("peak memory           {} MB\n", usage.ru_maxrss / 1024);
  fmt::print("step {:.3f} s, bubble {:.1f}%, exposed communication {:.3f} s{}, MFU {:.1f}%\n",
             metrics.mean_step, 100 * metrics.bubble_fraction, metrics.exposed_comm_s,
             metrics.exposed_exact ? "" : " (a lower bound)", 100 * metrics.mfu);
  fmt::print("largest device        {}\n", to_text(Bytes(static_cast<double>(memory))));
  const std::string what = fmt::format("dry run, GPT-3 175B, {} ranks", linked.program.world_size);
  // The goals hold for 16,384 ranks.
  const std::string against = linked.program.world_size == 16'384 ? "goal" : "";
  bench::record({.name = what, .measured = ran, .unit = "s", .against = against, .reference = 3});
  bench::record({.name = what + ": compiling and linking",
                 .measured = compiled,
                 .unit = "s",
                 .against = against,
                 .reference = 1});
  bench::record({.name = what + ": with cluster, choices and costs",
                 .measured = compiled + built + chosen + costed + ran,
                 .unit = "s"});
  record({.name = what + ": memory",
          .measured = static_cast<double>(usage.ru_maxrss) / 1024,
          .unit = "MB",
          .against = against,
          .reference = 500});
}
