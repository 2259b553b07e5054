// Metrics against brute force over recorded traces.
#include "engine/execution/measure/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "engine/base/errors.h"
#include "engine/execution/measure/occupancy.h"
#include "engine/execution/trace/chrome_trace.h"
#include "tests/engine/rig.h"

namespace rehearse::execution {
namespace {

using Intervals = std::vector<std::pair<double, double>>;

double length(Intervals v) {
  std::sort(v.begin(), v.end());
  double sum = 0, until = 0;
  for (const auto& [a, b] : v) {
    sum += std::max(0.0, b - std::max(a, until));
    until = std::max(until, b);
  }
  return sum;
}

TEST(Occupancy, EqualsTheUnionInAnyOrder) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Intervals all;
    double now = 0;
    const int n = 1 + static_cast<int>(random() % 60);
    for (int i = 0; i < n; ++i) {
      const double length = static_cast<double>(random() % 10);
      all.emplace_back(now, now + length);
      now += static_cast<double>(random() % 14) - 3;
      now = std::max(now, 0.0);
    }
    const double expected = length(all);
    for (int k = 0; k + 1 < n; ++k)
      if (random() % 3 == 0)
        std::swap(all[static_cast<std::size_t>(k)], all[random() % all.size()]);
    Occupancy occupancy(2, 128), small(1, 4);
    double covered = 0, at_most = 0;
    for (const auto& [a, b] : all) {
      covered += occupancy.cover(1, &a, &b, 1);
      at_most += small.cover(0, &a, &b, 1);
    }
    EXPECT_NEAR(covered, expected, 1e-9);
    EXPECT_TRUE(occupancy.exact());
    EXPECT_LE(at_most, expected + 1e-9);
    if (small.exact()) {
      EXPECT_NEAR(at_most, expected, 1e-9);
    }
  }
}

TEST(Metrics, EqualBruteForceOverTheTrace) {
  cluster::Disturbance d;
  d.compute_sigma = 0.2, d.link_sigma = 0.2;
  for (const char* method : {"ddp", "1f1b", "zero3", "pipedream-2bw", "interleaved"}) {
    SCOPED_TRACE(method);
    const methods::Combines& can = methods::strategy_named(method).combines;
    const plan::Plan plan = test::plan_of(method, can.pp ? 2 : 1, 2, can.tp ? 2 : 1, 4);
    const test::Rig rig(plan, test::small_model(4),
                        test::star(plan.mesh.world_size(), BytesPerSecond(3e8), Seconds(2e-6)));
    const Steps steps{.warm_up = 2, .steady = 5};
    Recording trace;
    MetricsSink sink(rig.linked, rig.model, rig.cluster, rig.costs, plan.schedule.global_batch,
                     steps);
    Tee both({&trace, &sink});
    rig.run(both, steps.warm_up + steps.steady, d);
    const Metrics metrics = sink.finish();

    std::map<int, double> ends;
    std::map<Id, Intervals> busy, any;  // by rank, steady steps; the warm-up's cover in `before`
    std::map<Id, Intervals> before;
    for (const Interval& i : trace.intervals) {
      const program::Role& role = rig.linked.program.roles[i.role];
      const program::Op& op = role.ops[i.op];
      ends[i.step] = std::max(ends[i.step], i.end);
      const bool compute = role.lanes[op.lane].name == "compute";
      if (!compute && !communicates(op.work)) continue;
      const Id rank = role.ranks[i.place];
      (i.step < steps.warm_up ? before : any)[rank].emplace_back(i.start, i.end);
      if (compute && i.step >= steps.warm_up) busy[rank].emplace_back(i.start, i.end);
    }
    double busy_sum = 0, any_sum = 0;
    for (auto& [rank, list] : any) {
      busy_sum += length(busy[rank]);
      Intervals all = before[rank];
      all.insert(all.end(), list.begin(), list.end());
      any_sum += length(all);
      // What steps of the warm-up cover alone is theirs; overlaps count for who comes first in the
      // trace, so allow for the few that straddle the border.
      any_sum -= length(before[rank]);
    }
    const double span = ends[6] - ends[1], ranks = plan.mesh.world_size();
    EXPECT_NEAR(metrics.mean_step, span / steps.steady, 1e-12 * span);
    EXPECT_EQ(metrics.step_times.size(), 5U);
    EXPECT_NEAR(metrics.bubble_fraction, 1 - busy_sum / span / ranks, 1e-9);
    EXPECT_TRUE(metrics.exposed_exact);
    EXPECT_NEAR(metrics.exposed_comm_s, (any_sum - busy_sum) / ranks / steps.steady,
                0.02 * metrics.mean_step);
    EXPECT_GT(metrics.exposed_comm_s, 0);
    EXPECT_NEAR(metrics.samples_per_s, plan.schedule.global_batch / metrics.mean_step, 1e-6);
    EXPECT_NEAR(metrics.tokens_per_s, 12 * metrics.samples_per_s, 1e-6);
    EXPECT_NEAR(metrics.mfu,
                model_flops(rig.model, 12 * plan.schedule.global_batch).value /
                    (metrics.mean_step * ranks * 1e30),
                1e-9);
    EXPECT_LT(metrics.robustness, 1);
  }
}

TEST(Metrics, QuietRunsAreSteadyAndRobust) {
  const test::Rig rig(test::plan_of("ddp", 1, 4, 1, 1), test::small_model(2),
                      test::star(4, BytesPerSecond(1e9), Seconds(1e-6)));
  const Metrics metrics = rig.metrics({5, 50});
  EXPECT_NEAR(metrics.std_step, 0, 1e-12);
  EXPECT_NEAR(metrics.robustness, 1, 1e-9);
}

TEST(Metrics, MissingStepIsAnError) {
  const test::Rig rig(test::plan_of("ddp", 1, 2, 1, 1), test::small_model(2), test::fast(2));
  MetricsSink sink(rig.linked, rig.model, rig.cluster, rig.costs, 2, {1, 3});
  rig.run(sink, 3);
  EXPECT_THROW(sink.finish(), ProgramError);
}

TEST(Metrics, StudentsInterval) {
  const Spread s = spread({1, 2, 3, 4, 5});
  EXPECT_DOUBLE_EQ(s.mean, 3);
  EXPECT_NEAR(s.std, std::sqrt(2.5), 1e-12);
  EXPECT_NEAR(s.ci95, 2.7764451052 * std::sqrt(2.5 / 5), 1e-9);
  EXPECT_EQ(spread({7}).ci95, 0);
}

TEST(Metrics, SeedsCountOnce) {
  const test::Rig rig(test::plan_of("ddp", 1, 4, 1, 1), test::small_model(2),
                      test::star(4, BytesPerSecond(1e9), Seconds(1e-6)));
  std::vector<Metrics> seeds;
  std::vector<double> means;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    cluster::Disturbance d;
    d.seed = seed, d.compute_sigma = 0.1;
    seeds.push_back(rig.metrics({1, 10}, d));
    means.push_back(seeds.back().mean_step);
  }
  const Summary summary = summarise(seeds);
  EXPECT_EQ(summary.step_time.values, means);
  EXPECT_GT(summary.step_time.ci95, 0);
  EXPECT_LT(summary.robustness, 1);
  EXPECT_GT(summary.robustness, 0.5);
}

TEST(Metrics, RatesOverSeedsAreThoseOfAllTheirTime) {
  // Steps of 1 and of 3 s with 12 samples each: 24 samples in 4 s, not the mean of 12 and 4 a
  // second.
  const std::vector<Metrics> seeds{
      {.mean_step = 1, .samples_per_s = 12, .tokens_per_s = 120, .mfu = 0.6, .bubble_fraction = 0},
      {.mean_step = 3, .samples_per_s = 4, .tokens_per_s = 40, .mfu = 0.2, .bubble_fraction = 0.8}};
  const Summary summary = summarise(seeds);
  EXPECT_DOUBLE_EQ(summary.step_time.mean, 2);
  EXPECT_DOUBLE_EQ(summary.samples_per_s, 12 / 2.0);
  EXPECT_DOUBLE_EQ(summary.tokens_per_s, 120 / 2.0);
  EXPECT_DOUBLE_EQ(summary.mfu, 0.3);
  EXPECT_DOUBLE_EQ(summary.bubble_fraction, 0.6);
}

/// `n` devices on a switch that draw 100 W idle and 400 W busy; the last, where it is unlike, takes
/// twice as long and draws 50 and 300 W.
cluster::Cluster powered(int n, bool unlike, Watts idle = Watts(100)) {
  cluster::Cluster c;
  cluster::DeviceKind kind = test::star(1, BytesPerSecond(1e9), Seconds(0)).kinds()[0];
  kind.name = "like", kind.idle = idle, kind.busy = Watts(400);
  const Id like = c.add_kind(kind);
  kind.name = "unlike", kind.idle = Watts(50), kind.busy = Watts(300), kind.launch = Seconds(2e-6);
  const Id other = c.add_kind(kind);
  const Id hub = c.add_vertex("switch");
  for (int i = 0; i < n; ++i) {
    const Id d = c.add_device("gpu" + std::to_string(i), unlike && i + 1 == n ? other : like,
                              static_cast<Id>(i));
    c.connect(c.vertex_of(d), hub, "cable" + std::to_string(i), BytesPerSecond(3e8), Seconds(2e-6));
  }
  return c;
}

TEST(Energy, OfOneDeviceThatAlwaysComputesIsItsPowerTimesTheStep) {
  const test::Rig rig(test::plan_of("ddp", 1, 1, 1, 1), test::small_model(2), powered(1, false));
  const Metrics m = rig.metrics({.warm_up = 1, .steady = 4});
  EXPECT_NEAR(m.bubble_fraction, 0, 1e-9);
  EXPECT_NEAR(m.joules_per_step / (400 * m.mean_step), 1, 1e-9);
}

TEST(Energy, OfLikeDevicesFollowsFromTheBubble) {
  for (const char* method : {"ddp", "1f1b", "zero3"}) {
    SCOPED_TRACE(method);
    const plan::Plan plan =
        test::plan_of(method, methods::strategy_named(method).combines.pp ? 2 : 1, 2, 1, 4);
    const test::Rig rig(plan, test::small_model(4), powered(plan.mesh.world_size(), false));
    const Metrics m =
        rig.metrics({.warm_up = 2, .steady = 5}, {.seed = 2, .compute_sigma = 0.2}, 8);
    EXPECT_GT(m.bubble_fraction, 0.01);
    const double expected =
        plan.mesh.world_size() * m.mean_step * (100 + 300 * (1 - m.bubble_fraction));
    EXPECT_NEAR(m.joules_per_step / expected, 1, 1e-9);
  }
}

TEST(Energy, OfUnlikeDevicesAndServersIsWhatTheTraceSays) {
  for (const char* method : {"ddp", "ps-sync"}) {
    SCOPED_TRACE(method);
    plan::Plan plan = test::plan_of(method, 1, 3, 1, 1);
    if (methods::strategy_named(method).combines.servers) plan.mesh.servers = 1;
    const test::Rig rig(plan, test::small_model(2), powered(plan.mesh.world_size(), true));
    const Steps steps{.warm_up = 1, .steady = 3};
    Recording all;
    MetricsSink sink(rig.linked, rig.model, rig.cluster, rig.costs, plan.schedule.global_batch,
                     steps);
    Tee tee({&all, &sink});
    rig.run(tee, steps.warm_up + steps.steady);
    const Metrics m = sink.finish();
    double expected = 0;
    for (int rank = 0; rank < plan.mesh.world_size(); ++rank) {
      const bool unlike = rank + 1 == plan.mesh.world_size();
      const double idle = unlike ? 50 : 100, busy = unlike ? 300 : 400;
      double working = 0;
      for (const Interval& i : all.intervals) {
        const program::Role& role = rig.linked.program.roles[i.role];
        if (role.ranks[i.place] != static_cast<Id>(rank) || i.step < steps.warm_up) continue;
        Id lane = none;
        for (const program::Op& op : role.ops)
          if (std::holds_alternative<program::Compute>(op.work)) lane = op.lane;
        const program::Op& op = role.ops[i.op];
        if (!communicates(op.work) && (lane == none || op.lane == lane)) working += i.end - i.start;
      }
      EXPECT_GT(working, 0);
      expected += idle * m.mean_step + (busy - idle) * working / steps.steady;
    }
    EXPECT_NEAR(m.joules_per_step / expected, 1, 1e-9);
  }
}

TEST(Energy, IsNotKnownWhereADevicesPowerIsNot) {
  const test::Rig rig(test::plan_of("ddp", 1, 2, 1, 1), test::small_model(2), test::fast(2));
  EXPECT_EQ(rig.metrics({.warm_up = 1, .steady = 2}).joules_per_step, 0);
}

TEST(Metrics, ABubbleIsNeverLessThanNothing) {
  const test::Rig rig(test::plan_of("ddp", 1, 1, 1, 3), test::small_model(3), test::fast(1));
  for (int steady = 1; steady < 60; ++steady)
    EXPECT_GE(rig.metrics({.warm_up = 3, .steady = steady}).bubble_fraction, 0);
}

TEST(Metrics, OfAFoldAreThoseOfAllRanks) {
  int folded = 0;
  for (const auto& [name, strategy] : methods::strategies()) {
    SCOPED_TRACE(name);
    const methods::Combines& can = strategy.combines;
    plan::Plan plan = test::plan_of(name, can.pp ? 2 : 1, 4, can.tp ? 2 : 1, 4);
    if (can.servers) plan.mesh.servers = 1;
    cluster::Cluster unlike = powered(plan.mesh.world_size(), true);
    for (Id node = 0; node < static_cast<Id>(unlike.nodes()); ++node)
      unlike.set_host(node, {.link = BytesPerSecond(1e10), .bandwidth = BytesPerSecond(1e10)});
    const test::Rig rig(plan, test::small_model(4), std::move(unlike));
    if (needs_events(rig.linked)) continue;
    std::vector<Id> kinds;
    for (const Id device : rig.costs.rank_to_device())
      kinds.push_back(rig.cluster.devices()[device].kind);
    const Fold all_alike = fold(rig.linked, rig.costs, kinds);
    const Steps steps{.warm_up = 1, .steady = 12};
    for (const bool stops : {false, true}) {
      const Stopping stopping{.at_period = stops};
      const int samples = plan.schedule.global_batch;
      MetricsSink whole(rig.linked, rig.model, rig.cluster, rig.costs, samples, steps, stopping);
      MetricsSink part(rig.linked, rig.model, rig.cluster, rig.costs, samples, steps, stopping,
                       &all_alike);
      rig.run(whole, steps.begun());
      dry_run_folded(rig.linked, rig.costs, all_alike, steps.begun(), &part);
      const Metrics a = whole.finish(), b = part.finish();
      EXPECT_EQ(a.step_times, b.step_times);
      EXPECT_EQ(a.steps_run, b.steps_run);
      for (const auto& [x, y] : {std::pair(a.bubble_fraction, b.bubble_fraction),
                                 {a.exposed_comm_s, b.exposed_comm_s},
                                 {a.joules_per_step, b.joules_per_step},
                                 {a.in_time, b.in_time}})
        EXPECT_NEAR(x, y, 1e-9 * std::abs(x));
    }
    Id classes = 0;
    for (const auto& one : all_alike.representative) classes += static_cast<Id>(one.size());
    folded += classes < kinds.size() ? 1 : 0;
  }
  EXPECT_GT(folded, 20);
}

}  // namespace
}  // namespace rehearse::execution
