// ZeRO-Offload (Ren et al., USENIX ATC 2021): what is on the device and on the host, what crosses
// PCIe, what the host's work costs, and that all of it is hidden behind what it need not wait for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/base/names.h"
#include "engine/cluster/cluster.h"
#include "engine/execution/trace/trace.h"
#include "tests/engine/rig.h"
#include "tests/message_of.h"

namespace rehearse::methods {
namespace {

/// Eight layers; two fast devices on each node, whose host copies and updates at given rates.
cluster::Cluster hosts(int devices, double copy, double update) {
  cluster::Cluster cluster = test::fast(devices);
  for (int i = 0; i < devices; ++i)
    cluster.set_host(cluster.devices()[static_cast<Id>(i)].node,
                     {.link = BytesPerSecond(copy), .bandwidth = BytesPerSecond(update)});
  return cluster;
}
plan::Plan offloading(int dp, program::DType precision, int micro_batches = 1) {
  plan::Plan plan = test::plan_of("zero-offload", 1, dp, 1, micro_batches);
  plan.precision = precision;
  return plan;
}
double copied(const test::Rig& rig, const char* lane) {
  const program::Role& role = rig.linked.program.roles[0];
  double bytes = 0;
  for (Id o = 0; o < role.ops.size(); ++o)
    if (std::holds_alternative<program::Copy>(role.ops[o].work) &&
        role.lanes[role.ops[o].lane].name == lane)
      bytes += static_cast<double>(rig.linked.roles[0].ops[o].bytes) / 2;  // read and written
  return bytes;
}

TEST(Offload, TakesThePapersBytes) {
  for (const int n : {1, 2, 4})
    for (const program::DType precision : {program::DType::f32, program::DType::bf16})
      for (const int micro_batches : {1, 2}) {
        SCOPED_TRACE(testing::Message() << n << " ranks, " << name_of(precision) << ", "
                                        << micro_batches << " micro-batches");
        const test::Rig rig(offloading(n, precision, micro_batches), test::small_model(8),
                            hosts(n, 1e9, 1e10));
        const auto parameters = static_cast<double>(parameters_of(rig.model));
        const auto width = static_cast<double>(size_of(precision));
        // Shards are padded to equal sizes.
        const double shard = parameters / n, padding = 0.01 * shard;
        // Section 4.1: 2 bytes a parameter down and 2 up in half precision.
        EXPECT_NEAR(copied(rig, "d2h"), width * shard, width * padding);
        EXPECT_NEAR(copied(rig, "h2d"), width * shard, width * padding);
        const link::RoleMemory& memory = rig.linked.memory[0];
        // Two moments, the fp32 weights, and the copies of gradients and weights.
        EXPECT_NEAR(static_cast<double>(memory.host), (12 + 2 * width) * shard,
                    (12 + 2 * width) * padding);
        EXPECT_EQ(memory.snapshots, 0);
        // The weights alone stay on the device; over micro-batches, gradients add up there.
        EXPECT_NEAR(static_cast<double>(memory.state), width * parameters, width * n * padding);
        EXPECT_NEAR(static_cast<double>(memory.buffer), micro_batches > 1 ? width * shard : 0,
                    width * padding);
      }
}

TEST(Offload, TheHostsWorkHasItsPrices) {
  const test::Rig rig(offloading(2, program::DType::f32), test::small_model(8),
                      hosts(2, 1e9, 1e10));
  const program::Role& role = rig.linked.program.roles[0];
  int updates = 0;
  for (Id o = 0; o < role.ops.size(); ++o) {
    const auto bytes = static_cast<double>(rig.linked.roles[0].ops[o].bytes);
    if (std::holds_alternative<program::Copy>(role.ops[o].work)) {
      EXPECT_DOUBLE_EQ(rig.costs.seconds(0, o, 0), bytes / 2 / 1e9);
    } else if (std::holds_alternative<program::Update>(role.ops[o].work)) {
      ++updates;
      EXPECT_EQ(role.lanes[role.ops[o].lane].name, "cpu");
      const int ranks = 1 + (rig.cluster.devices()[0].node == rig.cluster.devices()[1].node);
      EXPECT_DOUBLE_EQ(rig.costs.seconds(0, o, 0), bytes * ranks / 1e10);
    }
  }
  EXPECT_GT(updates, 2);
}

/// Copies and updates of one bucket wait for those of no other, and begin while backward runs.
TEST(Offload, BucketsOverlap) {
  const test::Rig rig(offloading(2, program::DType::f32), test::small_model(8), hosts(2, 1e7, 1e8));
  execution::Recording recording;
  rig.run(recording);
  const program::Role& role = rig.linked.program.roles[0];
  double first_copy = 1e9, last_backward = 0, busy = 0, end = 0;
  for (const execution::Interval& i : recording.intervals) {
    if (i.place != 0) continue;
    const program::Op& op = role.ops[i.op];
    if (role.lanes[op.lane].name == "d2h") first_copy = std::min(first_copy, i.start);
    if (const auto* c = std::get_if<program::Compute>(&op.work);
        c != nullptr && c->pass == program::Pass::backward)
      last_backward = std::max(last_backward, i.end);
    const std::string& lane = role.lanes[op.lane].name;
    if (lane == "d2h" || lane == "cpu" || lane == "h2d") busy += i.end - i.start;
    end = std::max(end, i.end);
  }
  EXPECT_LT(first_copy, last_backward);
  EXPECT_LT(end - last_backward, busy);
}

TEST(Offload, NeedsTheHostsRate) {
  EXPECT_THAT(test::message_of([] {
                test::Rig(offloading(2, program::DType::f32), test::small_model(2),
                          hosts(2, 1e9, 0));
              }),
              testing::HasSubstr("nodes.host_bandwidth"));
}

TEST(Offload, IsRefusedWhereWeightsHaveVersions) {
  for (const char* method : {"pipedream-2bw", "ps-sync"}) {
    plan::Plan plan = test::plan_of(method, 1, 1, 1, 1);
    if (std::string(method) == "pipedream-2bw") plan.mesh.pp = 2, plan.schedule.micro_batches = 2;
    plan.exchange.offload = plan::Offload::optimizer;
    EXPECT_THAT(test::message_of([&] { compile(plan, test::small_model(4)); }),
                testing::HasSubstr("method.offload: optimizer does not combine"))
        << method;
  }
}

}  // namespace
}  // namespace rehearse::methods
