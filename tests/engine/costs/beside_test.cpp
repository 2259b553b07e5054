// Which passes run beside collectives, for methods whose collectives overlap and for those whose do
// not, and what passes lose to them.
#include "engine/costs/device/beside.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "tests/engine/rig.h"

namespace rehearse::costs {
namespace {

using program::Compute;

constexpr int layers = 4;

plan::Plan plan_with(const std::string& method, int dp, int tp) {
  plan::Plan plan = test::plan_of(method, 1, dp, tp, 1);
  if (auto* defaults = methods::strategy_named(method).defaults) defaults(plan);
  return plan;
}
program::Role role_of(const plan::Plan& plan) {
  return methods::compile(plan, test::small_model(layers)).roles[0];
}
/// Collectives with a pass beside them; each appears at most once.
std::size_t overlapped(const program::Role& role) {
  std::vector<Id> all;
  for (const Beside& b : passes_beside(role)) {
    EXPECT_TRUE(std::holds_alternative<Compute>(role.ops[b.pass].work));
    EXPECT_FALSE(b.collectives.empty());
    all.insert(all.end(), b.collectives.begin(), b.collectives.end());
  }
  for (const Id c : all) EXPECT_TRUE(std::holds_alternative<program::Collective>(role.ops[c].work));
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
  return all.size();
}
std::size_t collectives(const program::Role& role) {
  return static_cast<std::size_t>(std::ranges::count_if(role.ops, [](const program::Op& op) {
    return std::holds_alternative<program::Collective>(op.work);
  }));
}

/// ZeRO-3 gathers one segment ahead. Only the first gathers and the last reduce-scatters have no
/// pass beside them: those of the embedding, which share one pass.
TEST(Beside, GathersOfZero3RunBesideThePassBefore) {
  const program::Role role = role_of(plan_with("zero3", 4, 1));
  for (const Beside& b : passes_beside(role))
    for (const Id c : b.collectives) {
      const bool gather =
          std::get<program::Collective>(role.ops[c].work).move == program::Move::all_gather;
      EXPECT_EQ(gather, b.pass < c) << b.pass << " " << c;
    }
  EXPECT_EQ(overlapped(role), collectives(role) - 4);
}

TEST(Beside, SumsOfDdpRunBesideTheNextBackward) {
  const program::Role role = role_of(plan_with("ddp", 4, 1));
  EXPECT_GE(overlapped(role), 2U);
  EXPECT_LT(overlapped(role), collectives(role));  // after the last backward there is no pass
  for (const Beside& b : passes_beside(role))
    for (const Id c : b.collectives) EXPECT_LT(c, b.pass);
}

TEST(Beside, NothingRunsBesideTheSumsOfTensorParallelism) {
  plan::Plan plan = plan_with("megatron", 1, 4);
  plan.exchange.bucket = Bytes(1e12);  // else gradients of norms are summed beside backward passes
  const program::Role role = role_of(plan);
  EXPECT_GT(collectives(role), 4U * layers - 1);
  EXPECT_EQ(overlapped(role), 0U);
}

/// PowerSGD sums whole gradients in its first steps only, and then its factors.
TEST(Beside, SumsOfTheFirstStepsDoNotCount) {
  const program::Role role = role_of(plan_with("powersgd", 4, 1));
  const auto of_first_steps = [](const program::Op& op) {
    return std::holds_alternative<program::Collective>(op.work) && op.when.until > 0;
  };
  EXPECT_TRUE(std::ranges::any_of(role.ops, of_first_steps));
  for (const Beside& b : passes_beside(role))
    for (const Id c : b.collectives) EXPECT_FALSE(of_first_steps(role.ops[c])) << c;
}

/// A step of ZeRO-3 on devices that lose `share`, with collectives on the device or not.
double step(double share, bool on_device, BytesPerSecond bandwidth) {
  cluster::Cluster cluster;
  const Id kind = cluster.add_kind({.name = "unit",
                                    .memory = Bytes(1e12),
                                    .peak_f32 = FlopsPerSecond(1e30),
                                    .memory_bandwidth = BytesPerSecond(1e30),
                                    .collective_share = share,
                                    .launch = Seconds(1e-6)});
  const Id hub = cluster.add_vertex("switch");
  for (Id i = 0; i < 4; ++i) {
    const Id device = cluster.add_device("gpu" + std::to_string(i), kind, i);
    cluster.connect(cluster.vertex_of(device), hub, "cable" + std::to_string(i), bandwidth,
                    Seconds(0));
  }
  model::ModelSpec model = test::small_model(layers);
  model.software.library.on_device = on_device;
  const test::Rig rig(plan_with("zero3", 4, 1), model, cluster);
  execution::Recording recording;
  return rig.run(recording).seconds;
}

TEST(Beside, PassesLoseAShareOfTheSecondsAndAtMostTheirOwn) {
  const BytesPerSecond fast(1e11);  // collectives of 0.1 us beside passes of several us
  const double alone = step(1, false, fast);
  EXPECT_EQ(step(0, true, fast), alone);
  const double whole = step(1, true, fast) - alone, half = step(0.5, true, fast) - alone;
  EXPECT_GT(half, 0);
  EXPECT_NEAR(whole, 2 * half, 1e-12);
  // On a slow network passes double at most, and most of that is hidden by the network.
  const BytesPerSecond slow(1e8);
  EXPECT_LT(step(1, true, slow), 1.3 * step(1, false, slow));
}

/// What passes of ZeRO-3 lose in a step on two nodes of two devices, whose cables carry 100 GB/s
/// and share a NIC.
double lost_on_two_nodes(BytesPerSecond nic) {
  cluster::Cluster cluster;
  const Id kind = cluster.add_kind({.name = "unit",
                                    .memory = Bytes(1e12),
                                    .peak_f32 = FlopsPerSecond(1e30),
                                    .memory_bandwidth = BytesPerSecond(1e30),
                                    .collective_share = 1e-3,
                                    .launch = Seconds(1e-6)});
  const Id fabric = cluster.add_vertex("fabric");
  for (Id node = 0; node < 2; ++node) {
    const Id inside = cluster.add_vertex("switch" + std::to_string(node), node);
    for (Id i = 0; i < 2; ++i) {
      const Id device = cluster.add_device("gpu" + std::to_string(2 * node + i), kind, node);
      cluster.connect(cluster.vertex_of(device), inside, {}, BytesPerSecond(1e11), Seconds(1e-7));
    }
    cluster.connect(inside, fabric, {}, nic, Seconds(1e-4));
  }
  const auto seconds = [&](bool on_device) {
    model::ModelSpec model = test::small_model(layers);
    model.software.library.on_device = on_device;
    const test::Rig rig(plan_with("zero3", 4, 1), model, cluster);
    double busy = 0;
    execution::Recording recording;
    rig.run(recording);
    for (const execution::Interval& i : recording.intervals)
      if (std::holds_alternative<Compute>(rig.linked.program.roles[i.role].ops[i.op].work))
        busy += i.end - i.start;
    return busy;
  };
  return seconds(true) - seconds(false);
}

TEST(Beside, PassesLoseToAsManyChannelsAsFillTheNetwork) {
  const double whole = lost_on_two_nodes(BytesPerSecond(1e11));
  EXPECT_GT(whole, 0);
  // Latencies decide how long the collectives take: a faster network changes nothing, and a quarter
  // of it a quarter.
  EXPECT_NEAR(lost_on_two_nodes(BytesPerSecond(1e12)), whole, 0.01 * whole);
  EXPECT_NEAR(lost_on_two_nodes(BytesPerSecond(2.5e10)), whole / 4, 0.01 * whole);
}

}  // namespace
}  // namespace rehearse::costs
