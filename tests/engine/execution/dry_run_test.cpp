// The dry run against closed forms, against itself (max-plus and events), and over seeds.
#include "engine/execution/dry_run/dry_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "engine/program/rounds.h"
#include "tests/engine/rig.h"
#include "tests/methods.h"

namespace rehearse::execution {
namespace {

/// When the compute lane of each rank begins and ends passes, and how long it is busy with them.
struct Passes : TraceSink {
  explicit Passes(const link::LinkedProgram& linked) : linked(linked) {}
  void record(Id role, Id op, int, Id place, std::span<const double> starts,
              std::span<const double> ends) override {
    const program::Role& who = linked.program.roles[role];
    if (!std::holds_alternative<program::Compute>(who.ops[op].work)) return;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      busy[who.ranks[place + i]] += ends[i] - starts[i];
      last = std::max(last, ends[i]);
    }
  }
  const link::LinkedProgram& linked;
  std::map<Id, double> busy = {};
  double last = 0;
};

// Whole blocks a stage, so that stages take equally long but for the embedding and the head, which
// ride along on the outer ones and are less than 2% of a stage.
double bubble_of(plan::Plan plan, int layers) {
  const model::ModelSpec model = test::small_model(layers);
  const int chunks = plan.mesh.pp * plan.schedule.virtual_stages;
  plan.placement.stages.assign(static_cast<std::size_t>(chunks), {});
  for (Id s = 0; s < model.segments.size(); ++s) {
    const int layer = model.segments[s].layer;
    const int chunk = layer >= 0 ? layer * chunks / layers : s == 0 ? 0 : chunks - 1;
    plan.placement.stages[static_cast<std::size_t>(chunk)].push_back(s);
  }
  const test::Rig rig(plan, model, test::fast(plan.mesh.pp));
  Passes passes(rig.linked);
  rig.run(passes);
  double busiest = 0;
  for (const auto& [rank, busy] : passes.busy) busiest = std::max(busiest, busy);
  return 1 - busiest / passes.last;
}

TEST(DryRun, BubblesOfPipelines) {
  for (const char* method : {"gpipe", "1f1b"})
    for (const auto& [stages, m] :
         std::vector<std::pair<int, int>>{{1, 2}, {2, 1}, {2, 4}, {4, 2}, {4, 8}})
      EXPECT_NEAR(bubble_of(test::plan_of(method, stages, 1, 1, m), 128),
                  double(stages - 1) / (m + stages - 1), 0.02)
          << method << " S=" << stages << " M=" << m;
}

TEST(DryRun, BubblesOfInterleavedPipelines) {
  for (const auto& [stages, m, chunks] :
       std::vector<std::tuple<int, int, int>>{{2, 4, 2}, {4, 4, 2}, {4, 8, 4}}) {
    plan::Plan plan = test::plan_of("interleaved", stages, 1, 1, m);
    plan.schedule.virtual_stages = chunks;
    EXPECT_NEAR(bubble_of(plan, 256), double(stages - 1) / (chunks * m + stages - 1), 0.02)
        << "S=" << stages << " M=" << m << " V=" << chunks;
  }
}

/// Seconds of one micro-batch on a stage in the middle, by pass, and when so many steps end.
struct Turns {
  double forward = 0, inputs = 0, weights = 0;
  std::vector<double> ends = {};
  double together() const { return forward + inputs + weights; }
};
Turns turns_of(const plan::Plan& plan, const std::vector<int>& steps) {
  // A tied table would make the first and the last stage wait for each other at the end of a step.
  model::ModelSpec model = test::small_model(128);
  model.tied = false;
  model.groups.clear(), model.segments.clear();
  model = build_model(model);
  plan::Plan with_stages = plan;
  with_stages.placement.stages.assign(static_cast<std::size_t>(plan.mesh.pp), {});
  for (Id s = 0; s < model.segments.size(); ++s) {
    const int layer = model.segments[s].layer;
    const int stage = layer >= 0 ? layer * plan.mesh.pp / 128 : s == 0 ? 0 : plan.mesh.pp - 1;
    with_stages.placement.stages[static_cast<std::size_t>(stage)].push_back(s);
  }
  const test::Rig rig(with_stages, model, test::fast(plan.mesh.pp));
  Turns turns;
  const program::Role& role = rig.linked.program.roles[1];
  for (Id o = 0; o < role.ops.size(); ++o)
    if (const auto* c = std::get_if<program::Compute>(&role.ops[o].work))
      (c->pass == program::Pass::forward           ? turns.forward
       : c->pass == program::Pass::backward_weight ? turns.weights
                                                   : turns.inputs) +=
          rig.costs.seconds(1, o, 0) / plan.schedule.micro_batches;
  for (const int n : steps) {
    Passes passes(rig.linked);
    rig.run(passes, n);
    turns.ends.push_back(passes.last);
  }
  return turns;
}

/// Qi et al., ICLR 2024, table 1. ZB-H2's bubble is that of steps which overlap.
TEST(DryRun, BubblesOfZeroBubblePipelines) {
  for (const auto& [stages, m] :
       std::vector<std::pair<int, int>>{{2, 4}, {4, 8}, {4, 12}, {8, 16}}) {
    SCOPED_TRACE(testing::Message() << "S=" << stages << " M=" << m);
    const Turns flushed = turns_of(test::plan_of("1f1b", stages, 1, 1, m), {1});
    const Turns h1 = turns_of(test::plan_of("zb-h1", stages, 1, 1, m), {1, 4, 5}),
                h2 = turns_of(test::plan_of("zb-h2", stages, 1, 1, m), {1, 4, 5});
    EXPECT_NEAR(flushed.together(), h1.together(), 0.02 * flushed.together());
    const double work = m * h1.together(), fill = stages - 1;
    EXPECT_NEAR(flushed.ends[0], work + fill * flushed.together(), 0.03 * work);
    EXPECT_NEAR(h1.ends[0], work + fill * (h1.forward + h1.inputs - h1.weights), 0.03 * work);
    EXPECT_NEAR(h1.ends[2] - h1.ends[1], h1.ends[0], 0.03 * work);
    EXPECT_NEAR(h2.ends[2] - h2.ends[1],
                work + fill * std::max(0.0, h2.forward + h2.inputs - 2 * h2.weights), 0.03 * work);
    EXPECT_LT(h2.ends[0], h1.ends[0] + 1e-9);
  }
}

TEST(DryRun, RingTimeAndBytes) {
  for (int n : {2, 3, 4, 8}) {
    const double bandwidth = 1e9, alpha = 5e-6;
    const test::Rig rig(test::plan_of("ddp", 1, n, 1, 1), test::small_model(2),
                        test::star(n, BytesPerSecond(bandwidth), Seconds(alpha / 2)));
    const program::Role& role = rig.linked.program.roles[0];
    double sent = 0, expected_sent = 0;
    for (Id o = 0; o < role.ops.size(); ++o) {
      const auto* work = std::get_if<program::Collective>(&role.ops[o].work);
      if (!work) continue;
      const double bytes = static_cast<double>(rig.linked.roles[0].ops[o].bytes);
      const double elements = bytes / 4;
      if (rig.costs.algorithm(0, o) == program::Algorithm::ring) {
        const double chunk = std::ceil(elements / n) * 4;
        EXPECT_NEAR(rig.costs.seconds(0, o, 0), 2 * (n - 1) * (alpha + chunk / bandwidth),
                    1e-9 * alpha);
        EXPECT_NEAR(rig.costs.bytes_sent(0, o)[0], 2.0 * (n - 1) / n * bytes, 8.0 * n);
      }
      expected_sent += 2.0 * (n - 1) / n * bytes;
      for (int i = 0; i < n; ++i) {
        const auto row = rig.costs.bytes_sent(0, o);
        sent += row[row.size() == 1 ? 0 : static_cast<std::size_t>(i)];
      }
    }
    EXPECT_NEAR(sent / n, expected_sent, 1e-2 * expected_sent);
    const Metrics metrics = rig.metrics({1, 2});
    EXPECT_NEAR(metrics.bytes_per_step, sent, 1e-9 * sent);
    EXPECT_NEAR(metrics.bytes_sent_mean, sent / n, 1e-9 * sent);
    // Every byte leaves through one cable and comes in through another.
    double on_links = 0;
    for (double bytes : rig.costs.link_bytes()) on_links += bytes;
    EXPECT_NEAR(on_links, 2 * sent, 1e-9 * on_links);
  }
}

TEST(DryRun, SiblingGroupsShareTheirNic) {
  // Two nodes of four devices behind one NIC each: dp pairs cross it, four at a time.
  for (int tp : {1, 4}) {
    cluster::Cluster c;
    const Id kind = c.add_kind({.name = "unit",
                                .memory = Bytes(1e12),
                                .peak_f32 = FlopsPerSecond(1e30),
                                .memory_bandwidth = BytesPerSecond(1e30)});
    const Id top = c.add_vertex("switch");
    for (Id node = 0; node < 2; ++node) {
      const Id inside = c.add_vertex("pcie" + std::to_string(node));
      for (int i = 0; i < 4; ++i) {
        const Id d = c.add_device("g" + std::to_string(node) + std::to_string(i), kind, node);
        c.connect(c.vertex_of(d), inside, "bus" + std::to_string(node) + std::to_string(i),
                  BytesPerSecond(1e30), Seconds(0));
      }
      c.connect(inside, top, "nic" + std::to_string(node), BytesPerSecond(1e9), Seconds(0));
    }
    std::vector<std::vector<Id>> groups;
    for (Id i = 0; i < static_cast<Id>(tp); ++i) groups.push_back({i, 4 + i});
    const auto seconds =
        costs::collective_seconds(c, program::Move::all_reduce, program::Algorithm::ring, 1000000,
                                  program::DType::f32, groups);
    for (double s : seconds) EXPECT_NEAR(s, 2 * tp * 2e6 / 1e9, 1e-12);
  }
}

std::vector<std::pair<std::string, plan::Plan>> in_order_plans() {
  std::vector<std::pair<std::string, plan::Plan>> out;
  for (auto& [name, strategy] : methods::strategies()) {
    const methods::Combines& can = strategy.combines;
    test::Refusals refusals;
    for (int pp : {1, 2})
      for (int tp : {1, 2}) {
        if ((pp > 1 && !can.pp) || (tp > 1 && !can.tp)) continue;
        plan::Plan plan = test::plan_of(name, pp, 2, tp, 4);
        plan.mesh.servers = can.servers ? 1 : 0;
        if (refusals.refuses(plan, test::small_model(4)) ||
            needs_events(link::link(methods::compile(plan, test::small_model(4)))))
          continue;
        out.emplace_back(name + " pp" + std::to_string(pp) + " tp" + std::to_string(tp), plan);
      }
    refusals.expect(name, {{"interleaved", 2}});  // without a pipeline
  }
  return out;
}

TEST(DryRun, EventsEqualMaxPlus) {
  cluster::Disturbance d;
  d.compute_sigma = 0.3, d.link_sigma = 0.2, d.stragglers = {{1, 2.0}};
  const auto plans = in_order_plans();
  EXPECT_GE(plans.size(), methods::strategies().size() - 1);  // all but those that run by arrival
  for (const auto& [name, plan] : plans) {
    SCOPED_TRACE(name);
    const test::Rig rig(plan, test::small_model(4),
                        test::star(plan.mesh.world_size(), BytesPerSecond(1e9), Seconds(2e-6)));
    Recording a, b;
    const DryRun x = rig.run(a, 4, d, false), y = rig.run(b, 4, d, true);
    EXPECT_EQ(x.instances, y.instances);
    EXPECT_EQ(x.seconds, y.seconds);
    auto key = [](const Interval& i) { return std::tuple(i.role, i.op, i.step, i.place); };
    auto before = [&](const Interval& i, const Interval& j) { return key(i) < key(j); };
    std::sort(a.intervals.begin(), a.intervals.end(), before);
    std::sort(b.intervals.begin(), b.intervals.end(), before);
    EXPECT_TRUE(a.intervals == b.intervals);
  }
}

TEST(DryRun, EveryOpOfEveryStepRunsOnceAfterWhatItWaitsFor) {
  for (const auto& [name, plan] : in_order_plans()) {
    SCOPED_TRACE(name);
    const test::Rig rig(plan, test::small_model(4),
                        test::star(plan.mesh.world_size(), BytesPerSecond(1e9), Seconds(2e-6)));
    Recording trace;
    cluster::Disturbance d;
    d.compute_sigma = 0.3;
    const int steps = 3;
    const DryRun run = rig.run(trace, steps, d);
    std::map<std::tuple<Id, Id, int, Id>, Interval> at;
    for (const Interval& i : trace.intervals)
      EXPECT_TRUE(at.emplace(std::tuple(i.role, i.op, i.step, i.place), i).second);
    EXPECT_EQ(static_cast<std::int64_t>(at.size()), run.instances);
    std::size_t expected = 0;
    for (const program::Role& role : rig.linked.program.roles)
      expected += role.ops.size() * role.ranks.size() * static_cast<std::size_t>(steps);
    EXPECT_EQ(at.size(), expected);
    for (const Interval& i : trace.intervals) {
      EXPECT_GE(i.end, i.start);
      for (const program::After& a : rig.linked.program.roles[i.role].ops[i.op].after)
        if (i.step >= a.lag) {
          EXPECT_LE((at.at({i.role, a.op, i.step - a.lag, i.place}).end), i.start);
        }
    }
  }
}

TEST(DryRun, SameSeedSameTraceAnotherSeedAnother) {
  const test::Rig rig(test::plan_of("1f1b", 2, 2, 1, 4), test::small_model(4),
                      test::star(4, BytesPerSecond(1e9), Seconds(2e-6)));
  cluster::Disturbance d;
  d.compute_sigma = 0.1, d.link_sigma = 0.1;
  Recording a, b, c;
  rig.run(a, 5, d);
  rig.run(b, 5, d);
  d.seed = 2;
  rig.run(c, 5, d);
  EXPECT_TRUE(a.intervals == b.intervals);
  EXPECT_FALSE(a.intervals == c.intervals);
}

// A worker slowed five times holds nobody up: the other does at least three times its updates.
TEST(DryRun, AsynchronousWorkersRunAtTheirOwnPace) {
  plan::Plan plan = test::plan_of("ps-async", 1, 2, 1, 1);
  plan.mesh.servers = 1;
  const test::Rig rig(plan, test::small_model(8),
                      test::star(3, BytesPerSecond(1e12), Seconds(1e-9)));
  ASSERT_TRUE(needs_events(rig.linked));
  cluster::Disturbance d;
  d.stragglers = {{1, 5.0}};
  Recording trace;
  const int steps = 20;
  rig.run(trace, steps, d);
  int puts[2] = {}, served = 0;
  for (const Interval& i : trace.intervals) {
    const program::Role& role = rig.linked.program.roles[i.role];
    if (role.free_running && std::holds_alternative<program::Put>(role.ops[i.op].work))
      ++puts[i.place];
    served += !role.free_running && std::holds_alternative<program::Update>(role.ops[i.op].work);
  }
  EXPECT_EQ(served, 2 * steps);
  EXPECT_GE(puts[0], 3 * puts[1]);
  EXPECT_GE(puts[1], 3);
}

/// When the passes of a rank began in a step and how long they took, and when it said whether it
/// was in time; by rank and step.
struct LocalSteps : TraceSink {
  explicit LocalSteps(const link::LinkedProgram& linked) : linked(linked) {}
  void record(Id role, Id op, int step, Id place, std::span<const double> starts,
              std::span<const double> ends) override {
    const program::Role& who = linked.program.roles[role];
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const std::pair key(who.ranks[place + i], step);
      if (std::holds_alternative<program::Compute>(who.ops[op].work)) {
        began.try_emplace(key, starts[i]);
        busy[key] += ends[i] - starts[i];
      }
      if (program::says_in_time(who.ops[op])) said[key] = starts[i];
    }
  }
  const link::LinkedProgram& linked;
  std::map<std::pair<Id, int>, double> began = {}, busy = {}, said = {};
};

// One of three clients is three times as slow as the others. The deadline allows 4.5 of their steps
// of a round of four. The slow one begins its second step after three, and would begin its third
// after six.
TEST(DryRun, LateClientsGiveUpTheirRounds) {
  const cluster::Disturbance slow{.stragglers = {{.rank = 2, .factor = 3}}};
  plan::Plan plan = test::plan_of("fedavg", 1, 3, 1, 2);
  plan.mesh.servers = 1;
  plan.exchange.averaging.local_steps = 4;
  const test::Rig waiting(plan, test::small_model(2), test::fast(4));
  LocalSteps all(waiting.linked);
  waiting.run(all, 8, slow);
  const double step = all.began.at({0, 1}) - all.began.at({0, 0});
  EXPECT_EQ(waiting.metrics({.warm_up = 4, .steady = 8}, slow, 6).in_time, 1);

  plan.exchange.averaging.deadline = Seconds(4.5 * step);
  const test::Rig rig(plan, test::small_model(2), test::fast(4));
  LocalSteps some(rig.linked);
  rig.run(some, 8, slow);
  for (const int round : {0, 4}) {
    for (int local = 0; local < 4; ++local) {
      EXPECT_NEAR(some.busy.at({0, round + local}), all.busy.at({0, 0}), 1e-9 * step);
      EXPECT_NEAR(some.busy.at({2, round + local}), local < 2 ? all.busy.at({2, 0}) : 0,
                  1e-9 * step);
    }
    EXPECT_NEAR(some.said.at({0, round + 3}) - some.began.at({0, round}), 4 * step, 1e-9 * step);
    EXPECT_NEAR(some.said.at({2, round + 3}) - some.began.at({2, round}), 6 * step, 1e-9 * step);
  }
  const Metrics metrics = rig.metrics({.warm_up = 4, .steady = 8}, slow, 6);
  EXPECT_DOUBLE_EQ(metrics.in_time, 2.0 / 3);
  EXPECT_DOUBLE_EQ(metrics.samples_per_s, 4 / metrics.mean_step);
}

TEST(DryRun, AProgramThatStopsSaysWhere) {
  // One message is put, two are taken.
  const link::LinkedProgram linked = link::link(program::parse_program(R"(rehearse-program 1
method test
mesh pp=1 dp=1 tp=1
world 2
channel box mailbox
role giver ranks=0
role taker ranks=1
begin giver
lane out in_order
storage A value f32 8 indices=1 versions=1
view A A 0 8
%0 out forward s0 n=1 mb=0 saved>A
%1 out put box to=taker source<A
end
begin taker
lane in in_order
storage B buffer f32 8 indices=1 versions=1
view B B 0 8
%0 in take box target>B
%1 in backward s0 n=1 mb=0 saved<B
%2 in take box target>B
%3 in backward s0 n=1 mb=1 saved<B
end
)"));
  const model::ModelSpec model = test::small_model(1);
  const cluster::Cluster cluster = test::star(2, BytesPerSecond(1e9), Seconds(0));
  const costs::Costs costs(linked, model, cluster, {});
  Recording trace;
  try {
    dry_run(linked, costs, cluster::Disturber({}, 2), 1, trace);
    FAIL();
  } catch (const ProgramError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("rank 1 (taker)"),
                                             testing::HasSubstr("take box")));
  }
}

TEST(DryRun, OneSlowRankOf16384ChangesTheResult) {
  plan::Plan plan = test::plan_of("1f1b", 16, 128, 8, 2);
  model::ModelSpec model = model::load_model("gpt3-175b", 0);
  const test::Rig rig(plan, model, cluster::load_cluster("dgx-a100:2048"));
  ASSERT_EQ(rig.linked.program.world_size, 16384);
  const Metrics even = rig.metrics({0, 1});
  cluster::Disturbance d;
  d.stragglers = {{9999, 1.5}};
  const Metrics slow = rig.metrics({0, 1}, d);
  EXPECT_GT(slow.mean_step, 1.01 * even.mean_step);
  EXPECT_LT(slow.mean_step, 1.5 * even.mean_step);
}

}  // namespace
}  // namespace rehearse::execution
