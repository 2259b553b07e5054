// Rig: a linked program with its model, cluster and costs, for tests of the dry run, costs and
// metrics; and small models, clusters and plans.
#pragma once
#include <string>
#include <utility>

#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/measure/metrics.h"
#include "engine/methods/strategy.h"

namespace rehearse::test {

struct Rig {
  model::ModelSpec model;
  cluster::Cluster cluster;
  link::LinkedProgram linked;
  costs::Costs costs;

  Rig(const plan::Plan& plan, model::ModelSpec spec, cluster::Cluster on)
      : model(std::move(spec)),
        cluster(std::move(on)),
        linked(link::link(methods::compile(plan, model))),
        costs(linked, model, cluster, {}) {}
  Rig(const Rig&) = delete;

  execution::DryRun run(execution::TraceSink& sink, int steps = 1,
                        const cluster::Disturbance& d = {}, bool events = false) const {
    const cluster::Disturber disturber(d, linked.program.world_size);
    return (events ? execution::dry_run_events : execution::dry_run)(linked, costs, disturber,
                                                                     steps, sink, nullptr);
  }
  execution::Metrics metrics(execution::Steps steps, const cluster::Disturbance& d = {},
                             int samples = 1, execution::Stopping stopping = {}) const {
    steps = execution::with_steps_in_flight(steps, linked.program);
    execution::MetricsSink sink(linked, model, cluster, costs, samples, steps, stopping);
    run(sink, steps.begun(), d);
    return sink.finish();
  }
};

/// The program without an op, and without the waits for it.
inline program::Program without_op(program::Program program, Id role, Id op) {
  program::Role& r = program.roles[role];
  r.ops.erase(r.ops.begin() + op);
  for (program::Op& other : r.ops) {
    std::erase_if(other.after, [&](const program::After& a) { return a.op == op; });
    for (program::After& a : other.after)
      if (a.op > op) --a.op;
  }
  return program;
}

inline model::ModelSpec small_model(int layers) {
  return model::build_model({.name = "small",
                             .layers = layers,
                             .hidden = 24,
                             .heads = 12,
                             .ffn = 48,
                             .vocab = 96,
                             .seq_len = 12});
}

/// `n` devices on a switch, each on its own node. A kernel costs 1 us and nothing else does, so
/// equal segments take equal times.
inline cluster::Cluster star(int n, BytesPerSecond bandwidth, Seconds latency) {
  cluster::Cluster c;
  const Id kind = c.add_kind({.name = "unit",
                              .memory = Bytes(1e12),
                              .peak_f32 = FlopsPerSecond(1e30),
                              .peak_f16 = FlopsPerSecond(1e30),
                              .peak_bf16 = FlopsPerSecond(1e30),
                              .memory_bandwidth = BytesPerSecond(1e30),
                              .launch = Seconds(1e-6)});
  const Id hub = c.add_vertex("switch");
  for (int i = 0; i < n; ++i) {
    const Id d = c.add_device("gpu" + std::to_string(i), kind, static_cast<Id>(i));
    c.connect(c.vertex_of(d), hub, "cable" + std::to_string(i), bandwidth, latency);
    c.set_host(static_cast<Id>(i),
               {.link = BytesPerSecond(1e30), .bandwidth = BytesPerSecond(1e30)});
  }
  return c;
}
inline cluster::Cluster fast(int n) { return star(n, BytesPerSecond(1e30), Seconds(0)); }

inline plan::Plan plan_of(const std::string& method, int pp, int dp, int tp, int micro_batches) {
  plan::Plan plan{.method = method,
                  .mesh = {.pp = pp, .dp = dp, .tp = tp},
                  .schedule = {.micro_batches = micro_batches}};
  plan.schedule.global_batch = dp * micro_batches;
  plan.exchange.bucket = Bytes(20000);
  return plan;
}

}  // namespace rehearse::test
