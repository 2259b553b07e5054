// Tests of migrations in the simulator. Without contention, a migration has exactly the times of
// the dry run, in both fidelities. With shared links it takes at least as long.
#include "engine/migration/migration.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/sim/runs.h"

namespace rehearse::sim {
namespace {

model::ModelSpec small_model() {
  return model::build_model({.name = "small",
                             .layers = 8,
                             .hidden = 24,
                             .heads = 12,
                             .ffn = 48,
                             .vocab = 96,
                             .seq_len = 12});
}

struct Case {
  std::string name = {};
  plan::Plan from = {}, to = {};
};

std::vector<Case> cases() {
  std::vector<Case> out = {
      {"zero1 to ddp",
       {.method = "zero1", .mesh = {.dp = 4}},
       {.method = "ddp", .mesh = {.dp = 4}}},
      {"zero3 to pp2 tp2",
       {.method = "zero3", .mesh = {.dp = 4}},
       {.method = "megatron", .mesh = {.pp = 2, .tp = 2}, .schedule = {.micro_batches = 2}}},
      {"tp4 to 1f1b",
       {.method = "megatron", .mesh = {.tp = 4}},
       {.method = "1f1b", .mesh = {.pp = 4}, .schedule = {.micro_batches = 4}}},
  };
  for (Case& one : out)
    for (plan::Plan* plan : {&one.from, &one.to})
      plan->schedule.global_batch = 8, plan->exchange.bucket = Bytes(20000);
  return out;
}

struct Took {
  double dry = 0, fluid = 0, chunk = 0;
  double fluid_difference = 0, chunk_difference = 0;  // largest, of a start or end, to the dry run
};
Took play(const Case& one, const cluster::Cluster& cluster) {
  const model::ModelSpec model = small_model();
  const link::LinkedProgram linked =
      link::link(migration::migrate(link::link(methods::compile(one.from, model)),
                                    link::link(methods::compile(one.to, model)), model,
                                    {.packet = Bytes(8000)})
                     .program);
  const costs::Costs costs(linked, model, cluster, {});
  const cluster::Disturber quiet({}, linked.program.world_size);
  execution::Recording recording;
  Took out{.dry = dry_run(linked, costs, quiet, 1, recording).seconds};
  const Times dry = Bench::times_of(recording);
  for (const Fidelity fidelity : {Fidelity::fluid, Fidelity::chunk}) {
    const std::vector<double> said = isolated([&] {
      execution::Recording simulated;
      const double seconds = simulate(linked, costs, cluster, quiet, 1, simulated,
                                      {.fidelity = fidelity, .bypass = false})
                                 .seconds;
      return std::vector<double>{seconds, difference(dry, Bench::times_of(simulated))};
    });
    (fidelity == Fidelity::fluid ? out.fluid : out.chunk) = said[0];
    (fidelity == Fidelity::fluid ? out.fluid_difference : out.chunk_difference) = said[1];
  }
  return out;
}

TEST(MigrationSimulated, TakesWhatTheDryRunSaysWhereNothingContends) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const Took times = play(one, switched(4, 1, 1e18));
    EXPECT_GT(times.dry, 0);
    EXPECT_LE(times.fluid_difference, 1e-6);
    EXPECT_LE(times.chunk_difference, 1e-6);
  }
}

TEST(MigrationSimulated, TakesNoLessWhereLinksAreShared) {
  // Both ranks of a node share one cable. Only the simulator models the contention on that cable.
  cluster::Cluster cluster;
  const Id kind = cluster.add_kind(cluster::load_device("A100 80GB"));
  const Id middle = cluster.add_vertex("switch");
  for (Id node = 0; node < 2; ++node) {
    const Id nic = cluster.add_vertex("nic" + std::to_string(node), node);
    cluster.connect(nic, middle, "cable" + std::to_string(node), BytesPerSecond(1e8),
                    Seconds(1e-6));
    for (int i = 0; i < 2; ++i) {
      const Id device =
          cluster.add_device("gpu" + std::to_string(2 * node + static_cast<Id>(i)), kind, node);
      cluster.connect(cluster.vertex_of(device), nic, "", BytesPerSecond(1e10), Seconds(1e-6));
    }
  }
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const Took times = play(one, cluster);
    EXPECT_GE(times.fluid, 0.999 * times.dry);
    EXPECT_NEAR(times.fluid, times.chunk, 0.05 * times.chunk);
  }
}

}  // namespace
}  // namespace rehearse::sim
