// Explanations: both views of a step sum to the step time and agree with the metrics for every
// method, and closed forms of pipelines, all-reduces, hosts, and of what 10% more would bring.
#include "engine/execution/explain/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/costs/device/host_lane.h"
#include "tests/engine/rig.h"
#include "tests/methods.h"

namespace rehearse::execution {
namespace {

Pricing pricing_of(const test::Rig& rig) {
  Pricing out{.model = rig.model, .cluster = rig.cluster};
  out.rank_to_device.resize(static_cast<std::size_t>(rig.linked.program.world_size));
  std::iota(out.rank_to_device.begin(), out.rank_to_device.end(), Id{0});
  return out;
}
Explanation explain(const test::Rig& rig) { return explain(rig.linked, pricing_of(rig)); }

/// Seconds a step of one part; the part's name, or a kind for all of its parts.
ExplainedPart part(const Explanation& e, const std::string& name) {
  ExplainedPart out;
  for (const ExplainedPart& p : e.parts)
    if (p.part.name == name || name_of(p.part.kind) == name)
      out.path += p.path, out.ranks += p.ranks, out.latency += p.latency;
  return out;
}
double saved(const Explanation& e, const std::string& resource) {
  for (const Gain& g : e.gains)
    if (g.resource.find(resource) != std::string::npos) return 1 - g.seconds / e.step_s;
  ADD_FAILURE() << "no gain of " << resource;
  return 0;
}
/// The sum of the costs of a role's ops that `wanted` picks.
template <class F>
double cost(const test::Rig& rig, Id role, F wanted) {
  double sum = 0;
  const auto& ops = rig.linked.program.roles[role].ops;
  for (Id o = 0; o < ops.size(); ++o)
    if (wanted(ops[o])) sum += rig.costs.seconds(role, o, 0);
  return sum;
}
bool in_pass(const program::Op& op, program::Pass pass) {
  const auto* c = std::get_if<program::Compute>(&op.work);
  return c != nullptr && c->pass == pass;
}

/// Two ranks along each axis that the method goes together with.
plan::Plan plan_of(const std::string& method) {
  const methods::Combines& can = methods::strategy_named(method).combines;
  plan::Plan plan = test::plan_of(method, can.pp ? 2 : 1, 2, can.tp ? 2 : 1, 4);
  if (can.servers) plan.mesh.servers = 1;
  return plan;
}

class ExplainMethod : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, ExplainMethod, testing::ValuesIn(test::all_methods()),
                         test::method_name);

TEST_P(ExplainMethod, SumsToTheStepAndAgreesWithTheMetrics) {
  const plan::Plan plan = plan_of(GetParam());
  const test::Rig rig(plan, test::small_model(4),
                      test::star(plan.mesh.world_size(), BytesPerSecond(3e8), Seconds(2e-6)));
  const Explanation e = explain(rig);
  double path = 0, ranks = 0;
  for (const ExplainedPart& p : e.parts) {
    path += p.path, ranks += p.ranks;
    EXPECT_GE(p.path, 0) << p.part.name;
    EXPECT_GE(p.ranks, 0) << p.part.name;
    EXPECT_LE(p.latency, p.path + 1e-12) << p.part.name;
  }
  EXPECT_NEAR(path, e.step_s, 1e-9 * e.step_s);
  EXPECT_NEAR(ranks, e.step_s, 1e-9 * e.step_s);
  EXPECT_EQ(part(e, "waiting").path, 0) << "every op on the path starts when its cause ends";

  // Both runs go on after the steps in question: the end of a run is not like its middle.
  MetricsSink sink(rig.linked, rig.model, rig.cluster, rig.costs, plan.schedule.global_batch,
                   explained_steps);
  rig.run(sink, explained_steps.warm_up + explained_steps.steady + 1 + rig.linked.max_offset);
  const Metrics metrics = sink.finish();
  EXPECT_NEAR(e.step_s, metrics.mean_step, 1e-9 * metrics.mean_step);
  EXPECT_NEAR(e.bubble_fraction, metrics.bubble_fraction, 0.003);
  EXPECT_NEAR(e.exposed_comm_s, metrics.exposed_comm_s, 0.003 * metrics.mean_step);

  double stretched = 0, at = 0;
  for (const Stretch& s : e.path) {
    EXPECT_NEAR(s.start, at, 1e-9 * e.step_s);
    EXPECT_LE(s.communication_s + s.host_s, s.seconds() + 1e-12);
    stretched += s.seconds(), at = s.end;
  }
  EXPECT_NEAR(stretched, metrics.step_times[explained_steps.steady / 2], 1e-9);
  EXPECT_NEAR(step_seconds(rig.linked, rig.costs, e.steps), e.step_s, 1e-9 * e.step_s);
  for (std::size_t i = 1; i < e.gains.size(); ++i)
    EXPECT_LE(e.gains[i - 1].seconds, e.gains[i].seconds);
  if (needs_events(rig.linked)) return;  // another order of arrival may be slower
  for (const Gain& gain : e.gains) {
    EXPECT_LE(gain.seconds, e.step_s * (1 + 1e-9)) << gain.resource;
    EXPECT_GE(gain.seconds, e.step_s / more * (1 - 1e-9)) << gain.resource;
  }
}

TEST_P(ExplainMethod, EqualRanksAreExplainedAsOne) {
  const plan::Plan plan = plan_of(GetParam());
  const test::Rig rig(plan, test::small_model(4),
                      test::star(plan.mesh.world_size(), BytesPerSecond(3e8), Seconds(2e-6)));
  const Explanation e = explain(rig);
  int ranks = 0;
  for (const DeviceUse& d : e.devices) ranks += d.ranks;
  EXPECT_EQ(ranks, plan.mesh.world_size());
  if (needs_events(rig.linked)) return;
  // The same, rank by rank.
  const int all = explained_steps.warm_up + explained_steps.steady + 1 + rig.linked.max_offset;
  const int last = explained_steps.warm_up + explained_steps.steady - 1;
  History history(rig.linked, nullptr);
  rig.run(history, all);
  const double from = end_of_step(history, explained_steps.warm_up - 1);
  const double until = end_of_step(history, last);
  const auto path = critical_path(history, last, from);
  const WorkParts parts(rig.linked, rig.model);
  const Breakdown whole = break_down(history, parts, path, from, until, explained_steps.steady);
  EXPECT_NEAR(whole.bubble_fraction, e.bubble_fraction, 1e-9);
  EXPECT_NEAR(whole.exposed_comm_s, e.exposed_comm_s, 1e-9 * e.step_s);
  for (std::size_t i = 0; i < parts.all().size(); ++i)
    EXPECT_NEAR(whole.parts[i].ranks, part(e, parts.all()[i].name).ranks, 1e-9 * e.step_s)
        << parts.all()[i].name;
}

// 1F1B on two stages, of which the second has the head and is slower. Transfers take no time.
//
//   stage 0  |F0 |F1 |   |B0 |     |F2 ..          |B last|update
//   stage 1      |F0  |B0   |F1  |B1   | ..        |
TEST(Explain, PipelineOfTwoRanks) {
  const int micro_batches = 5;
  plan::Plan plan = test::plan_of("1f1b", 2, 1, 1, micro_batches);
  plan.placement.stages = {{0, 1}, {2, 3, 4, 5}};
  const test::Rig rig(plan, test::small_model(2), test::fast(2));
  double f[2], b[2], busy[2];
  for (Id r = 0; r < 2; ++r) {
    const auto pass = [&](program::Pass which) {
      return cost(rig, r, [&](const program::Op& op) { return in_pass(op, which); });
    };
    f[r] = pass(program::Pass::forward) / micro_batches;
    b[r] = pass(program::Pass::backward) / micro_batches;
    busy[r] = cost(rig, r, [](const program::Op& op) { return op.lane == 0; });
  }
  ASSERT_GE(f[1] + b[1], f[0] + b[0]);
  const double update = busy[0] - micro_batches * (f[0] + b[0]);
  const double step = f[0] + micro_batches * (f[1] + b[1]) + b[0] + update;
  const Explanation e = explain(rig);
  EXPECT_NEAR(e.step_s, step, 1e-12);
  EXPECT_NEAR(e.bubble_fraction, 1 - (busy[0] + busy[1]) / (2 * step), 1e-9);
  EXPECT_NEAR(part(e, "waiting").ranks, step - (busy[0] + busy[1]) / 2, 1e-12);
  // Rank 1 has one update more, so the step ends 1 us after rank 0 has begun the next one. Only at
  // the two ends of the 50 steps does this count.
  const double ends = 1e-6 / 50;
  EXPECT_NEAR(part(e, "compute").path, step - update, 1.01 * ends);
  EXPECT_NEAR(part(e, "optimizer").path, update, 1.01 * ends);
  EXPECT_NEAR(part(e, "forward embedding").path, 2e-6, 1.01 * ends)
      << "of the first micro-batch alone";
  // F0 on rank 0, all passes of rank 1, B of the last micro-batch on rank 0, update, next F0.
  ASSERT_EQ(e.path.size(), 2U * micro_batches + 4);
  EXPECT_EQ(e.path.front().rank, 0U);
  EXPECT_EQ(e.path.front().from, "embedding");
  EXPECT_NEAR(e.path.front().seconds(), f[0] - 1e-6, 1e-12);
  for (std::size_t i = 1; i <= 2 * micro_batches; ++i) {
    EXPECT_EQ(e.path[i].rank, 1U);
    EXPECT_EQ(e.path[i].what, i % 2 == 1 ? "forward" : "backward");
    EXPECT_EQ(e.path[i].micro_batch, static_cast<int>(i - 1) / 2);
    EXPECT_NEAR(e.path[i].seconds(), i % 2 == 1 ? f[1] : b[1], 1e-12);
  }
  EXPECT_NEAR(e.path[2 * micro_batches + 1].seconds(), b[0], 1e-12);
  EXPECT_EQ(e.path[2 * micro_batches + 2].what, "update");
  EXPECT_NEAR(e.path.back().seconds(), 1e-6, 1e-12);
  ASSERT_EQ(e.devices.size(), 2U);
  EXPECT_EQ(e.devices[0].role, "stage1");
  EXPECT_NEAR(e.devices[0].busy, busy[1] / step, 1e-9);
}

TEST(Explain, AllReduceOfOneBucketIsExposed) {
  plan::Plan plan = test::plan_of("ddp", 1, 4, 1, 1);
  plan.exchange.bucket = Bytes(1e9);
  const test::Rig rig(plan, test::small_model(2),
                      test::star(4, BytesPerSecond(1e8), Seconds(1e-6)));
  const double reduce = cost(rig, 0, [](const program::Op& op) {
    return std::holds_alternative<program::Collective>(op.work);
  });
  const Explanation e = explain(rig);
  EXPECT_NEAR(part(e, "dp all-reduce").path, reduce, 1e-12);
  EXPECT_NEAR(part(e, "dp all-reduce").ranks, reduce, 1e-12);
  EXPECT_NEAR(e.exposed_comm_s, reduce, 1e-12);
  // Halving and doubling: two cables of 1 us in each of 2 x 2 rounds.
  EXPECT_NEAR(part(e, "dp all-reduce").latency, 8e-6, 1e-12);
  ASSERT_EQ(e.links.size(), 1U);
  EXPECT_EQ(e.links[0].count, 8);
  EXPECT_NEAR(e.links[0].utilisation, e.links[0].bytes / 1e8 / e.step_s, 1e-12);
  EXPECT_NEAR(e.links[0].bytes, rig.costs.link_bytes()[0], 1e-6);
}

TEST(Explain, AnExchangeOfEveryNthStepPutsAnNthOfItsBytesOnLinks) {
  plan::Plan plan = test::plan_of("ddp", 1, 4, 1, 1);
  const auto on_links = [&] {
    const test::Rig rig(plan, test::small_model(2),
                        test::star(4, BytesPerSecond(1e8), Seconds(1e-6)));
    return rig.costs.link_bytes()[0];
  };
  const double every_step = on_links();
  plan.method = "local-sgd", plan.exchange.averaging.local_steps = 8;
  EXPECT_NEAR(on_links(), every_step / 8, 1e-9 * every_step);
}

/// `n` devices whose time is all in matrix products.
cluster::Cluster products_only(int n, BytesPerSecond bandwidth) {
  cluster::Cluster c = test::star(n, bandwidth, Seconds(0));
  cluster::DeviceKind kind = c.kinds()[0];
  kind.peak_f32 = FlopsPerSecond(1e12);
  kind.launch = Seconds(0);
  c.replace_kind(0, kind);
  return c;
}

TEST(Explain, ComputeBoundJobWantsAFasterDevice) {
  const test::Rig rig(test::plan_of("ddp", 1, 2, 1, 1), test::small_model(2),
                      products_only(2, BytesPerSecond(1e30)));
  const Explanation e = explain(rig);
  EXPECT_NEAR(saved(e, "unit: matrix rate"), 1 - 1 / 1.1, 1e-6);
  EXPECT_EQ(e.gains.front().resource, "unit: matrix rate");
  EXPECT_NEAR(saved(e, "cable*"), 0, 1e-6);
  EXPECT_NEAR(saved(e, "unit: memory bandwidth"), 0, 1e-6);
}

TEST(Explain, CommunicationBoundJobWantsWiderLinks) {
  const test::Rig rig(test::plan_of("ddp", 1, 2, 1, 1), test::small_model(2),
                      products_only(2, BytesPerSecond(1e3)));
  const Explanation e = explain(rig);
  EXPECT_NEAR(saved(e, "cable*"), 1 - 1 / 1.1, 1e-6);
  EXPECT_EQ(e.gains.front().resource, "cable* (1 kB/s): bandwidth");
  EXPECT_NEAR(saved(e, "unit: matrix rate"), 0, 1e-6);
  EXPECT_NEAR(e.links[0].utilisation, 1, 0.01);
}

TEST(Explain, LatencyBoundJobWantsAShorterLatency) {
  cluster::Cluster c = test::star(2, BytesPerSecond(1e30), Seconds(1));
  c.use_library({.launch = Seconds(2), .across = Seconds(1)});
  plan::Plan plan = test::plan_of("ddp", 1, 2, 1, 1);
  plan.exchange.bucket = Bytes(1e9);
  const Explanation e = explain(test::Rig(plan, test::small_model(2), std::move(c)));
  // Two rounds of 2 x 1 s and 1 s of the library, and one launch of 2 s: 8 s.
  EXPECT_NEAR(e.step_s, 8, 1e-3);
  EXPECT_NEAR(part(e, "dp all-reduce").latency, 8, 1e-6);
  EXPECT_NEAR(saved(e, "all links: latency"), 0.5 * (1 - 1 / 1.1), 1e-3);
  EXPECT_NEAR(saved(e, "communication library: launch"), 0.25 * (1 - 1 / 1.1), 1e-3);
  EXPECT_NEAR(saved(e, "communication library: latency"), 0.25 * (1 - 1 / 1.1), 1e-3);
}

TEST(Explain, SlowHostIsTheReasonAndTheCure) {
  model::ModelSpec model = test::small_model(2);
  model.software.forward_issue = model.software.backward_issue = Seconds(1e-3);
  const cluster::Cluster cluster = test::fast(1);
  const plan::Plan plan = test::plan_of("ddp", 1, 1, 1, 1);
  const link::LinkedProgram linked =
      link::link(costs::with_host_lane(methods::compile(plan, model), model));
  const Explanation e =
      execution::explain(linked, {.model = model, .cluster = cluster, .rank_to_device = {0}});
  EXPECT_NEAR(part(e, "host").path / e.step_s, 1, 0.02);
  EXPECT_NEAR(part(e, "host").ranks / e.step_s, 1, 0.02);
  EXPECT_NEAR(part(e, "waiting").ranks, 0, 0.001 * e.step_s);
  EXPECT_EQ(e.gains.front().resource, "host: issuing kernels");
  EXPECT_NEAR(saved(e, "host"), 1 - 1 / 1.1, 0.002);
}

TEST(Explain, MeasuredPassesAreOneResource) {
  const test::Rig rig(test::plan_of("ddp", 1, 2, 1, 1), test::small_model(2), test::fast(2));
  costs::Profile profile;
  for (const auto kind : {model::SegmentKind::embedding, model::SegmentKind::attention,
                          model::SegmentKind::mlp, model::SegmentKind::head})
    for (const auto pass : {program::Pass::forward, program::Pass::backward})
      profile.segments.push_back({.model = "small",
                                  .kind = kind,
                                  .pass = pass,
                                  .samples = 1,
                                  .seq_len = 12,
                                  .seconds = 1,
                                  .device_kind = "unit"});
  Pricing pricing = pricing_of(rig);
  pricing.profile = &profile;
  const Explanation e = explain(rig.linked, pricing);
  EXPECT_NEAR(part(e, "compute").path, 12, 1e-3);
  EXPECT_EQ(e.gains.front().resource, "unit: all local work");
  EXPECT_NEAR(saved(e, "unit"), 1 - 1 / 1.1, 1e-5);
  EXPECT_EQ(part(e, "communication").latency, 0);
}

TEST(Explain, StragglersAndSlowLinksCount) {
  const test::Rig rig(test::plan_of("ddp", 1, 2, 1, 1), test::small_model(2), test::fast(2));
  Pricing pricing = pricing_of(rig);
  pricing.pace = {1, 3};
  const Explanation e = explain(rig.linked, pricing);
  EXPECT_NEAR(e.step_s, 3 * explain(rig).step_s, 1e-9);
  ASSERT_EQ(e.devices.size(), 2U);
  EXPECT_EQ(e.devices[0].rank, 1U);
  EXPECT_NEAR(e.devices[1].busy / e.devices[0].busy, 1.0 / 3, 1e-6);
  pricing.slow.assign(rig.cluster.links().size(), 1.0);
  pricing.slow[0] = 2;
  const Explanation slow = explain(rig.linked, pricing);
  EXPECT_EQ(slow.links.front().first, rig.cluster.links()[0].name);
  EXPECT_EQ(slow.links.front().count, 1);
  EXPECT_DOUBLE_EQ(slow.links.front().bandwidth.value, 5e29);
}

TEST(Explain, LargeProgramsAreExplainedOverFewerStepsOrRefused) {
  const test::Rig rig(test::plan_of("ddp", 1, 2, 1, 1), test::small_model(2), test::fast(2));
  const Explanation whole = explain(rig);
  EXPECT_EQ(whole.steps.steady, explained_steps.steady);
  const auto ops = static_cast<std::int64_t>(rig.linked.program.roles[0].ops.size());
  const Explanation few = explain(rig.linked, pricing_of(rig), 20 * ops);
  EXPECT_LT(few.steps.steady, explained_steps.steady);
  EXPECT_NEAR(few.step_s, whole.step_s, 1e-9 * whole.step_s);
  try {
    explain(rig.linked, pricing_of(rig), ops);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("--explain: a step of this program has"));
  }
}

}  // namespace
}  // namespace rehearse::execution
