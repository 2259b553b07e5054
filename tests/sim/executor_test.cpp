// Tests of the simulator: the same arguments give the same bytes, the bypass of SimGrid changes no
// time, ranks share the cores of a host, and an op that never ends is an error that names the op.
#include "sim/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <simgrid/s4u.hpp>

#include "engine/base/errors.h"
#include "engine/execution/measure/metrics.h"
#include "tests/sim/runs.h"

namespace rehearse::sim {
namespace {

using testing::HasSubstr;

const cluster::Disturbance jitter = {.seed = 3, .compute_sigma = 0.05, .link_sigma = 0.05};

plan::Plan small_ddp(int ranks) {
  return {.method = "ddp",
          .mesh = {.dp = ranks},
          .schedule = {.global_batch = ranks},
          .exchange = {.collective = program::Algorithm::ring}};
}

TEST(Simulate, TheSameSeedGivesTheSameBytes) {
  for (const Fidelity fidelity : {Fidelity::fluid, Fidelity::chunk}) {
    const Bench bench(small_ddp(8), cluster::load_cluster("paper"));
    const Bench again(small_ddp(8), cluster::load_cluster("paper"));
    const auto first = bench.sim({.fidelity = fidelity}, jitter).raw;
    EXPECT_EQ(first, again.sim({.fidelity = fidelity}, jitter).raw);
    cluster::Disturbance other = jitter;
    other.seed = 4;
    EXPECT_NE(first, bench.sim({.fidelity = fidelity}, other).raw);
  }
}

TEST(Simulate, BypassChangesNothingAt64Ranks) {
  // Only tensor-parallel groups use NVLink; pipeline stages and replicas share the NICs.
  const plan::Plan plan = {.method = "1f1b",
                           .mesh = {.pp = 4, .dp = 2, .tp = 8},
                           .schedule = {.global_batch = 16, .micro_batches = 8}};
  const Bench bench(plan, cluster::load_cluster("dgx-a100:8"), "bert-large");
  const Bench::Sim with = bench.sim({}, jitter, 2);
  const Bench::Sim without = bench.sim({.bypass = false}, jitter, 2);
  EXPECT_GT(with.simulated.bypassed, 1000);
  EXPECT_EQ(without.simulated.bypassed, 0);
  EXPECT_LT(with.simulated.flows, without.simulated.flows / 2);
  EXPECT_EQ(with.simulated.instances, without.simulated.instances);
  EXPECT_LE(difference(with.times, without.times), 1e-9);
}

TEST(Simulate, GivesTheMetricsOfTheDryRunWhereNothingContends) {
  const plan::Plan plan = {.method = "1f1b",
                           .mesh = {.pp = 2, .dp = 2},
                           .schedule = {.global_batch = 16, .micro_batches = 4}};
  const Bench bench(plan, meshed(4));
  const auto measured = [&](auto run) {
    execution::MetricsSink sink(bench.linked, bench.model, bench.cluster, bench.costs,
                                plan.schedule.global_batch, {.warm_up = 1, .steady = 3});
    run(cluster::Disturber(jitter, plan.mesh.world_size()), sink);
    const execution::Metrics m = sink.finish();
    return std::vector<double>{
        m.mean_step,       m.std_step,       m.robustness,      m.tokens_per_s,  m.mfu,
        m.bubble_fraction, m.exposed_comm_s, m.bytes_sent_mean, m.bytes_sent_max};
  };
  const auto dry = measured([&](const cluster::Disturber& disturber, execution::MetricsSink& sink) {
    dry_run(bench.linked, bench.costs, disturber, 4, sink);
  });
  const auto simulated = isolated([&] {
    return measured([&](const cluster::Disturber& disturber, execution::MetricsSink& sink) {
      simulate(bench.linked, bench.costs, bench.cluster, disturber, 4, sink, {});
    });
  });
  ASSERT_EQ(simulated.size(), dry.size());
  for (std::size_t i = 0; i < dry.size(); ++i) {
    EXPECT_GT(dry[i], 0) << i;
    EXPECT_NEAR(simulated[i], dry[i], 1e-6 * dry[i]) << i;
  }
}

TEST(Simulate, SharedCoresAreShared) {
  auto host = [](int ranks, int cores) {
    cluster::Cluster cluster = switched(ranks, ranks);
    cluster.share_cores(cores);
    return cluster;
  };
  const Bench one(small_ddp(1), host(1, 1));
  const double alone = one.sim({}).simulated.seconds;
  EXPECT_NEAR(alone, last_end(one.dry()), 1e-6 * alone);
  const Bench roomy(small_ddp(2), host(2, 2));
  const Bench crowded(small_ddp(2), host(2, 1));
  const double two = roomy.sim({}).simulated.seconds;
  EXPECT_NEAR(two, last_end(roomy.dry()), 1e-6 * two);
  // On one core, computing takes twice as long; transfers take as long as before.
  const double squeezed = crowded.sim({}).simulated.seconds;
  EXPECT_GT(squeezed, two + 0.9 * alone);
  EXPECT_LT(squeezed, two + 1.1 * alone);
}

TEST(Simulate, CrowdedProfilesAreNotCrowdedTwice) {
  // Costs stretch the profile's times to the number of ranks that run now. The simulator's sharing
  // of cores must not stretch them a second time.
  costs::Profile profile = {.cores = 2, .ranks = 1, .threads_per_rank = 2};
  for (const model::SegmentKind kind :
       {model::SegmentKind::embedding, model::SegmentKind::attention, model::SegmentKind::mlp,
        model::SegmentKind::head})
    for (const program::Pass pass : {program::Pass::forward, program::Pass::backward})
      profile.segments.push_back({.model = "gpt-tiny",
                                  .kind = kind,
                                  .pass = pass,
                                  .samples = 1,
                                  .seq_len = model::load_model("gpt-tiny", 0).seq_len,
                                  .seconds = 0.010});
  profile.updates.push_back({.seconds_per_element = 1e-12, .launch = 1e-3});
  for (const int ranks : {1, 2, 4}) {
    cluster::Cluster cluster = switched(ranks, ranks);
    cluster.share_cores(2);
    const Bench bench(small_ddp(ranks), cluster, "gpt-tiny", &profile);
    const double foreseen = last_end(bench.dry());
    EXPECT_NEAR(bench.sim({.profile = &profile}).simulated.seconds, foreseen, 0.01 * foreseen);
    EXPECT_GT(foreseen, 3 * 12 * 0.010 * ranks);  // 12 passes a step; each uses both cores
  }
}

TEST(Simulate, AProfileWithoutTransfersChangesNone) {
  // Contention is simulated, so nothing of it may be in the durations that are played.
  const costs::Profile profile = {};
  plan::Plan servers = small_ddp(4);
  servers.method = "ps-sync";
  servers.mesh.servers = 1;
  plan::Plan groups = small_ddp(8);  // those of data parallelism share the NICs of the nodes
  groups.method = "megatron";
  groups.mesh.tp = 2;
  for (const plan::Plan& plan : {servers, groups}) {
    const cluster::Cluster cluster = cluster::load_cluster("server-4090:2");
    const Bench without(plan, cluster);
    const Bench with(plan, cluster, "gpt-tiny", &profile);
    for (const Fidelity fidelity : {Fidelity::fluid, Fidelity::chunk})
      EXPECT_DOUBLE_EQ(with.sim({.fidelity = fidelity, .profile = &profile}).simulated.seconds,
                       without.sim({.fidelity = fidelity}).simulated.seconds)
          << plan.method;
  }
}

TEST(Simulate, CommunicationTakesCoresToo) {
  cluster::Cluster cluster = switched(2, 2);
  cluster.share_cores(2);
  const Bench bench(small_ddp(2), cluster);
  costs::Profile profile = {.cores = 2, .ranks = 2};
  const double free = bench.sim({.profile = &profile}).simulated.seconds;
  profile.cpu_seconds_per_byte = 1e-8;
  EXPECT_GT(bench.sim({.profile = &profile}).simulated.seconds, 1.01 * free);
}

/// Turns off a link of SimGrid when the first op ends.
class Scissors : public execution::TraceSink {
 public:
  void record(Id, Id, int, Id, std::span<const double>, std::span<const double>) override {
    if (auto* link = simgrid::s4u::Link::by_name_or_null("l0"); link != nullptr && link->is_on())
      link->turn_off();
  }
};

TEST(Simulate, WhatNeverEndsIsAnErrorThatNamesIt) {
  const Bench bench(small_ddp(4), switched(4));
  try {
    isolated([&] {
      Scissors scissors;
      simulate(bench.linked, bench.costs, bench.cluster, cluster::Disturber({}, 4), 2, scissors,
               {.bypass = false});
      return std::vector<double>{};
    });
    FAIL() << "nothing was thrown";
  } catch (const BackendError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the simulation ended with"));
    EXPECT_THAT(error.what(), HasSubstr("all_reduce"));
    EXPECT_THAT(error.what(), HasSubstr("began and did not end"));
  }
}

TEST(Simulate, ASecondSimulationInOneProcessIsRefused) {
  const Bench bench(small_ddp(2), switched(2));
  EXPECT_THROW(isolated([&] {
                 for (int i = 0; i < 2; ++i) {
                   execution::Recording ignored;
                   simulate(bench.linked, bench.costs, bench.cluster, cluster::Disturber({}, 2), 1,
                            ignored);
                 }
                 return std::vector<double>{};
               }),
               BackendError);
}

TEST(Simulate, SlowLinksAreSlowHereToo) {
  const Bench whole(small_ddp(4), switched(4, 1, 1e8));
  const double before = whole.sim({.bypass = false}).simulated.seconds;
  const std::vector<double> slow =
      link_slowdowns({.slow_links = {{.link = "wire2", .factor = 3}}}, whole.cluster);
  const Bench bench(small_ddp(4), whole.cluster, "gpt-tiny", nullptr, slow);
  const double after = bench.sim({.bypass = false, .slow = slow}).simulated.seconds;
  EXPECT_NEAR(after, last_end(bench.dry()), 1e-6 * after);
  EXPECT_GT(after, 1.2 * before);
}

TEST(Simulate, ASlowedRankSlowsTheStep) {
  const Bench bench(small_ddp(16), switched(16));
  const double even = bench.sim({}).simulated.seconds;
  const double slowed =
      bench.sim({}, {.stragglers = {{.rank = 11, .factor = 1.5}}}).simulated.seconds;
  EXPECT_GT(slowed, 1.2 * even);
}

}  // namespace
}  // namespace rehearse::sim
