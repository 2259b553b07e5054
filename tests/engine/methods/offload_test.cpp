// What is in host memory: the optimizer (ZeRO-Offload; Ren et al., USENIX ATC 2021) and
// activations. What crosses PCIe for it, what the host's work costs, and what hides behind what it
// need not wait for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "engine/base/names.h"
#include "engine/cluster/cluster.h"
#include "engine/execution/trace/trace.h"
#include "tests/engine/rig.h"
#include "tests/message_of.h"
#include "tests/methods.h"

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

plan::Plan hosting(const std::string& method, int pp, int micro_batches, int ahead = 2) {
  plan::Plan plan = test::plan_of(method, pp, 1, 1, micro_batches);
  plan.schedule.hosted = {.on = true, .ahead = ahead};
  return plan;
}
/// Bytes of a segment that forward keeps for backward: its input, and without recomputation what is
/// computed inside of it.
double kept_bytes(const plan::Plan& plan, const model::ModelSpec& model, Id segment) {
  if (model.segments[segment].kind == model::SegmentKind::embedding) return 0;
  const bool layer = plan.schedule.recompute_unit == plan::RecomputeUnit::layer;
  if (layer && model.segments[segment].kind == model::SegmentKind::mlp) return 0;
  const std::int64_t input = std::int64_t{plan.samples()} * model.seq_len * model.hidden * 4;
  return static_cast<double>(input +
                             (plan.schedule.recompute
                                  ? 0
                                  : saved_bytes(model, segment, plan.samples(),
                                                model::TensorSplit(1, false), plan.precision)));
}
/// The sum over all segments but the last `ahead` ones that keep anything, whose backward begins
/// at once.
double moved_bytes(const plan::Plan& plan, const model::ModelSpec& model) {
  double sum = 0;
  int stay = plan.schedule.hosted.ahead;
  for (auto s = static_cast<Id>(model.segments.size()); s-- > 0;) {
    const double bytes = kept_bytes(plan, model, s);
    if (bytes > 0 && stay-- <= 0) sum += bytes;
  }
  return plan.schedule.micro_batches * sum;
}

TEST(HostedActivations, GoThereAndBack) {
  for (const int micro_batches : {1, 3})
    for (const int ahead : {1, 2, 5}) {
      plan::Plan plan = hosting("ddp", 1, micro_batches, ahead);
      const auto check = [&](const char* what) {
        SCOPED_TRACE(testing::Message() << what << " ahead " << ahead);
        const test::Rig rig(plan, test::small_model(8), test::fast(1));
        const double bytes = moved_bytes(plan, rig.model);
        EXPECT_EQ(copied(rig, "act.d2h"), bytes);
        EXPECT_EQ(copied(rig, "act.h2d"), bytes);
        // A micro-batch ends before the next one begins.
        EXPECT_EQ(static_cast<double>(rig.linked.memory[0].host), bytes / micro_batches);
      };
      check("whole");
      plan.schedule.recompute = true;
      check("recomputing segments");
      plan.schedule.recompute_unit = plan::RecomputeUnit::layer;
      check("recomputing layers");
    }
}

TEST(HostedActivations, LeaveThoseOfAFewSegmentsOnTheDevice) {
  const auto of = [](bool on, int layers) {
    plan::Plan plan = hosting("ddp", 1, 2);
    plan.schedule.hosted.on = on;
    // Slow copies: what is planned fits any timing, and here it would be needed.
    return test::Rig(plan, test::small_model(layers), hosts(1, 1e3, 1e3)).linked.memory[0];
  };
  EXPECT_GT(of(false, 16).value, 1.8 * static_cast<double>(of(false, 8).value));
  EXPECT_EQ(of(true, 16).value, of(true, 8).value);
  EXPECT_LT(of(true, 16).total(), of(false, 16).total());
  EXPECT_GT(of(true, 16).host, 1.8 * static_cast<double>(of(true, 8).host));
}

TEST(HostedActivations, OfSomeLayers) {
  plan::Plan plan = hosting("1f1b", 2, 4);
  plan.placement.partition = plan::Partition::layers;
  plan.schedule.hosted.layers = 1;
  const test::Rig rig(plan, test::small_model(8), test::fast(2));
  std::map<std::string, int> copies;  // by the name of what is copied
  for (const program::Role& role : rig.linked.program.roles)
    for (const program::Op& op : role.ops)
      if (std::holds_alternative<program::Copy>(op.work))
        ++copies[role.storages[role.views[op.refs.front().view].storage].name];
  // The first layer of each stage: segments 1 and 2, and 9 and 10, of four micro-batches.
  std::map<std::string, int> wanted;
  for (const int segment : {1, 2, 9, 10})
    for (const char* what : {"x", "saved"})
      for (const char* where : {"", ".host"}) wanted[what + std::to_string(segment) + where] = 4;
  EXPECT_EQ(copies, wanted);
}

TEST(HostedActivations, HideBehindPassesOrSetThePace) {
  const auto last_pass = [](const test::Rig& rig) {
    execution::Recording recording;
    rig.run(recording);
    double end = 0;
    for (const execution::Interval& i : recording.intervals)
      if (std::holds_alternative<program::Compute>(rig.linked.program.roles[0].ops[i.op].work))
        end = std::max(end, i.end);
    return end;
  };
  const model::ModelSpec model = test::small_model(8);
  const plan::Plan plan = hosting("ddp", 1, 1);
  plan::Plan without = plan;
  without.schedule.hosted.on = false;
  const test::Rig plain(without, model, test::fast(1));
  const double passes = last_pass(plain);
  // A pass takes microseconds, and so does a copy here: none has to wait for one.
  double largest = 0, ends = 0;
  for (Id s = 0; s < model.segments.size(); ++s)
    largest = std::max(largest, kept_bytes(plan, model, s));
  const program::Role& role = plain.linked.program.roles[0];
  double shortest = 1;
  for (Id o = 0; o < role.ops.size(); ++o)
    if (const auto* c = std::get_if<program::Compute>(&role.ops[o].work)) {
      const double seconds = plain.costs.seconds(0, o, 0);
      if (model.segments[c->segment].layer >= 0) shortest = std::min(shortest, seconds);
      if (c->segment == 0 || (c->segment == 1 && is_backward(c->pass))) ends += seconds;
    }
  EXPECT_NEAR(last_pass(test::Rig(plan, model, hosts(1, largest / shortest, 1e30))), passes,
              1e-9 * passes);
  // Copies that take a million times as long: all go to the host one after the other, from when
  // the embedding has ended, then all come back, before the backward of the first layer. The first
  // that comes back, an input, does so while the last one still goes.
  const double rate = 1e-6 * largest / shortest;
  const double input = model.seq_len * model.hidden * 4.0;
  const double copies = (2 * moved_bytes(plan, model) - input) / rate;
  EXPECT_NEAR(last_pass(test::Rig(plan, model, hosts(1, rate, 1e30))), ends + copies,
              1e-9 * copies);
}

/// On every stage but the last, backwards of other micro-batches come first, so all go to the host.
TEST(HostedActivations, OfPipelinesStayWhereBackwardFollows) {
  const plan::Plan plan = hosting("1f1b", 2, 4, 1);
  const test::Rig rig(plan, test::small_model(8), test::fast(2));
  for (const program::Role& role : rig.linked.program.roles) {
    std::set<Id> segments, moved;
    for (const program::Op& op : role.ops) {
      if (const auto* c = std::get_if<program::Compute>(&op.work); c != nullptr && c->segment > 0)
        segments.insert(c->segment);
      const std::string& name = role.storages[role.views[op.refs.front().view].storage].name;
      if (std::holds_alternative<program::Copy>(op.work) && name.starts_with('x') &&
          !name.ends_with(".host"))
        moved.insert(static_cast<Id>(std::stoi(name.substr(1))));
    }
    const bool last = segments.contains(static_cast<Id>(rig.model.segments.size() - 1));
    EXPECT_EQ(moved.size(), segments.size() - (last ? 1 : 0));
  }
}

TEST(HostedActivations, CombineWithEveryMethod) {
  for (const std::string& method : test::all_methods()) {
    SCOPED_TRACE(method);
    const Combines& can = strategy_named(method).combines;
    const int pp = can.pp ? 2 : 1;
    plan::Plan plan = test::plan_of(method, pp, can.pp ? 1 : 2, 1, 4);
    plan.schedule.global_batch *= 8;  // activations are most of the memory
    plan.mesh.servers = can.servers ? 1 : 0;
    plan.schedule.virtual_stages = can.interleave && method == "interleaved" ? 2 : 1;
    const model::ModelSpec model = test::small_model(16);
    const link::LinkedProgram without = link::link(compile(plan, model));
    plan.schedule.hosted = {.on = true, .ahead = 1};
    const link::LinkedProgram with = link::link(compile(plan, model));
    EXPECT_LT(with.memory[0].total(), without.memory[0].total());
    EXPECT_GT(with.memory[0].host, without.memory[0].host);
  }
}

}  // namespace
}  // namespace rehearse::methods
