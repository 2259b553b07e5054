// What the communication library adds: a latency to each transfer, inside a node and across, and a
// launch to each op. Closed forms of a ring and of single transfers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/costs/costs.h"
#include "engine/job/job.h"
#include "tests/engine/rig.h"

namespace rehearse::cluster {
namespace {

constexpr double us = 1e-6, alpha = 3 * us, bandwidth = 1e9;
const software::Library library{
    .launch = Seconds(10 * us), .in_node = Seconds(4 * us), .across = Seconds(14 * us)};

/// `nodes` nodes of `per_node` devices, all on one switch. Two links of alpha / 2 make a path.
Cluster nodes_of(int nodes, int per_node) {
  Cluster c;
  const Id kind = c.add_kind({.name = "unit",
                              .memory = Bytes(1e12),
                              .peak_f32 = FlopsPerSecond(1e30),
                              .memory_bandwidth = BytesPerSecond(1e30)});
  const Id hub = c.add_vertex("switch");
  for (int i = 0; i < nodes * per_node; ++i) {
    const Id d = c.add_device("gpu" + std::to_string(i), kind, static_cast<Id>(i / per_node));
    c.connect(c.vertex_of(d), hub, "cable" + std::to_string(i), BytesPerSecond(bandwidth),
              Seconds(alpha / 2));
  }
  return c;
}

TEST(Library, AddsItsLatencyToEveryPath) {
  Cluster c = nodes_of(2, 2);
  EXPECT_EQ(c.library().launch.value, 0);
  EXPECT_DOUBLE_EQ(c.ways(0, 1).front().latency.value, alpha);
  EXPECT_DOUBLE_EQ(c.ways(0, 2).front().latency.value, alpha);
  c.use_library(library);  // the paths of before are forgotten
  EXPECT_DOUBLE_EQ(c.ways(0, 1).front().latency.value, alpha + 4 * us);
  EXPECT_DOUBLE_EQ(c.ways(0, 2).front().latency.value, alpha + 14 * us);
  EXPECT_DOUBLE_EQ(c.way(3, 0, 1e6).latency.value, alpha + 14 * us);
  EXPECT_DOUBLE_EQ(c.ways(0, 1).front().bandwidth.value, bandwidth);
  EXPECT_THAT(c.way(1, 1, 1e6).links, testing::IsEmpty());
  EXPECT_EQ(c.way(1, 1, 1e6).latency.value, 0);
  // Links keep their own latencies.
  for (const Link& link : c.links()) EXPECT_DOUBLE_EQ(link.latency.value, alpha / 2);
}

TEST(Library, AddsItToEachOfSeveralPaths) {
  // A cable with a high latency beside the switch: two ways, each with the library's part.
  Cluster c = nodes_of(1, 2);
  c.connect(c.vertex_of(0), c.vertex_of(1), "cable", BytesPerSecond(9e9), Seconds(50 * us));
  ASSERT_EQ(c.ways(0, 1).size(), 2U);
  const std::vector<Path> before(c.ways(0, 1).begin(), c.ways(0, 1).end());
  c.use_library(library);
  ASSERT_EQ(c.ways(0, 1).size(), 2U);
  for (std::size_t w = 0; w < 2; ++w)
    EXPECT_DOUBLE_EQ(c.ways(0, 1)[w].latency.value, before[w].latency.value + 4 * us);
  EXPECT_EQ(c.path(0, 1, 1e9).size(), 1U);
  EXPECT_EQ(c.path(0, 1, 10).size(), 2U);
}

double ring(const Cluster& c, program::Move move, int n, double bytes) {
  std::vector<Id> all(static_cast<std::size_t>(n));
  for (Id i = 0; i < all.size(); ++i) all[i] = i;
  return costs::collective_seconds(c, move, program::Algorithm::ring,
                                   static_cast<std::int64_t>(bytes / 4), program::DType::f32,
                                   {all})[0];
}

TEST(Library, ARingPaysALaunchAndTheLatencyOfEveryHop) {
  for (const int n : {2, 4, 8}) {
    const double bytes = 4096.0 * n;
    for (const bool one_node : {true, false}) {
      Cluster c = one_node ? nodes_of(1, n) : nodes_of(n, 1);
      const double hop = one_node ? 4 * us : 14 * us;
      const auto hops = [&](int count) { return count * (alpha + bytes / n / bandwidth); };
      EXPECT_NEAR(ring(c, program::Move::all_reduce, n, bytes), hops(2 * (n - 1)), 1e-12);
      c.use_library(library);
      EXPECT_NEAR(ring(c, program::Move::all_reduce, n, bytes),
                  10 * us + hops(2 * (n - 1)) + 2 * (n - 1) * hop, 1e-12);
      EXPECT_NEAR(ring(c, program::Move::all_gather, n, bytes),
                  10 * us + hops(n - 1) + (n - 1) * hop, 1e-12);
    }
  }
  // A group of one rank moves nothing and launches nothing.
  Cluster one = nodes_of(1, 1);
  one.use_library(library);
  EXPECT_EQ(ring(one, program::Move::all_reduce, 1, 4096), 0);
}

TEST(Library, ATransferOfAPipelinePaysALaunchAndOneHop) {
  for (const bool one_node : {true, false}) {
    Cluster c = one_node ? nodes_of(1, 2) : nodes_of(2, 1);
    c.use_library(library);
    const test::Rig rig(test::plan_of("1f1b", 2, 1, 1, 1), test::small_model(2), c);
    int sends = 0;
    for (Id r = 0; r < rig.linked.program.roles.size(); ++r)
      for (Id o = 0; o < rig.linked.program.roles[r].ops.size(); ++o)
        if (std::holds_alternative<program::Send>(rig.linked.program.roles[r].ops[o].work)) {
          const auto bytes = static_cast<double>(rig.linked.roles[r].ops[o].bytes);
          const double expected =
              10 * us + alpha + (one_node ? 4 * us : 14 * us) + bytes / bandwidth;
          EXPECT_NEAR(rig.costs.seconds(r, o, 0), expected, 1e-15);
          EXPECT_NEAR(rig.costs.transfer_seconds(0, 1, static_cast<std::int64_t>(bytes)), expected,
                      1e-15);
          ++sends;
        }
    EXPECT_EQ(sends, 2);
  }
}

}  // namespace
}  // namespace rehearse::cluster
