// Runs that stop at a period of their steps have the metrics of full runs: small programs with a
// known period, all methods, and hosts that run ahead.
#include "engine/execution/measure/period.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/costs/device/host_lane.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/measure/metrics.h"
#include "tests/engine/rig.h"
#include "tests/methods.h"

namespace rehearse::execution {
namespace {

constexpr Stopping at_period{.at_period = true};

/// A program of one rank. Each op takes known seconds and has a lane of its own.
class Lanes {
 public:
  Id add(double seconds, std::vector<program::After> after = {}) {
    const auto id = static_cast<Id>(role_.ops.size());
    role_.lanes.push_back({"lane" + std::to_string(id)});
    role_.ops.push_back({.lane = id, .work = program::Issue{seconds}, .after = std::move(after)});
    return id;
  }
  void wait(Id op, program::After after) { role_.ops[op].after.push_back(after); }

  Metrics metrics(Steps steps, Stopping stopping) const {
    const model::ModelSpec model = test::small_model(1);
    const cluster::Cluster cluster = test::fast(1);
    const link::LinkedProgram linked = link::link(program::Program{
        .method = "lanes", .mesh = {{"dp", 1}}, .world_size = 1, .roles = {role_}});
    const costs::Costs costs(linked, model, cluster, {});
    MetricsSink sink(linked, model, cluster, costs, 1, steps, stopping);
    dry_run(linked, costs, cluster::Disturber({}, 1), steps.begun(), sink);
    return sink.finish();
  }

 private:
  program::Role role_ = {.name = "worker", .ranks = {0}};
};

void expect_same(const Metrics& found, const Metrics& full) {
  const double tolerance = 1e-9 * full.mean_step;
  ASSERT_EQ(found.step_times.size(), full.step_times.size());
  for (std::size_t i = 0; i < full.step_times.size(); ++i)
    EXPECT_NEAR(found.step_times[i], full.step_times[i], tolerance) << "steady step " << i;
  EXPECT_NEAR(found.mean_step, full.mean_step, tolerance);
  EXPECT_NEAR(found.robustness, full.robustness, 1e-9);
  EXPECT_NEAR(found.bubble_fraction, full.bubble_fraction, 1e-9);
  EXPECT_NEAR(found.exposed_comm_s, full.exposed_comm_s, tolerance);
  EXPECT_NEAR(found.samples_per_s, full.samples_per_s, 1e-9 * full.samples_per_s);
  EXPECT_NEAR(found.joules_per_step, full.joules_per_step, 1e-9 * full.joules_per_step);
}

TEST(Period, OfTwoSteps) {
  // Three ops of 1 s in a circle of two steps: 1.5 s a step, in steps of 1 s and 2 s by turns.
  Lanes lanes;
  const Id x = lanes.add(1), y = lanes.add(1, {{.op = x}}), z = lanes.add(1, {{.op = y}});
  lanes.wait(x, {.op = z, .lag = 2});
  const Steps steps{5, 50};
  const Metrics full = lanes.metrics(steps, {}), found = lanes.metrics(steps, at_period);
  EXPECT_EQ(full.steps_run, 55);
  EXPECT_EQ(full.period, 0);
  EXPECT_EQ(found.period, 2);
  EXPECT_LE(found.steps_run, 8);
  EXPECT_NEAR(std::abs(full.step_times[0] - full.step_times[1]), 1, 1e-9);
  expect_same(found, full);
  EXPECT_NEAR(found.mean_step, 1.5, 1e-9);
  // An odd number of steady steps has one more step of one kind.
  expect_same(lanes.metrics({5, 7}, at_period), lanes.metrics({5, 7}, {}));
  EXPECT_GT(std::abs(lanes.metrics({5, 7}, at_period).mean_step - 1.5), 0.05);
}

TEST(Period, AfterALongTransient) {
  // A chain of five lanes at 0.8 s a step begins 4 s late. A lane at 1 s a step takes the lead
  // after 15 steps, but the steps repeat only when the chain is as far ahead as it may be: six
  // steps.
  Lanes lanes;
  const Id slow = lanes.add(1);
  const Id first = lanes.add(0.8);
  Id last = first;
  for (int i = 0; i < 4; ++i) last = lanes.add(0.8, {{.op = last}});
  const Id both = lanes.add(0.1, {{.op = slow}, {.op = last}});
  lanes.wait(first, {.op = both, .lag = 6});
  const Steps steps{5, 50};
  const Metrics full = lanes.metrics(steps, {}), found = lanes.metrics(steps, at_period);
  EXPECT_NEAR(full.step_times[4], 0.8, 1e-9);
  EXPECT_NEAR(full.step_times[40], 1, 1e-9);
  EXPECT_EQ(found.period, 1);
  EXPECT_GT(found.steps_run, 15);
  EXPECT_LT(found.steps_run, 45);
  expect_same(found, full);
}

TEST(Period, IsNotFoundWhereLanesDriftApart) {
  // The second lane falls behind the first and does not wait for it: no two steps are equal.
  Lanes lanes;
  const Id a = lanes.add(1);
  lanes.add(0.1, {{.op = a}});
  const Id c = lanes.add(1.25, {{.op = a, .lag = 1}});
  lanes.add(0.1, {{.op = c}});
  const Metrics found = lanes.metrics({5, 50}, at_period);
  EXPECT_EQ(found.period, 0);
  EXPECT_EQ(found.steps_run, 55);
}

TEST(Period, WaitsForTheStepsThatATraceShows) {
  Lanes lanes;
  lanes.add(1);
  EXPECT_LT(lanes.metrics({5, 50}, at_period).steps_run, 5);
  EXPECT_EQ(lanes.metrics({5, 50}, {.at_period = true, .least = 7}).steps_run, 7);
}

class PeriodOfMethods : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, PeriodOfMethods, testing::ValuesIn(test::all_methods()),
                         test::method_name);

TEST_P(PeriodOfMethods, HasTheMetricsOfTheFullRun) {
  const methods::Combines& can = methods::strategy_named(GetParam()).combines;
  const plan::Plan plan = test::plan_of(GetParam(), can.pp ? 2 : 1, 4, can.tp ? 2 : 1, 4);
  cluster::Disturbance straggler;
  straggler.stragglers = {{.rank = 1, .factor = 1.3}};
  for (const cluster::Disturbance& d : {cluster::Disturbance{}, straggler}) {
    const test::Rig rig(plan, test::small_model(4),
                        test::star(plan.mesh.world_size() + 1,  // a server needs a device too
                                   BytesPerSecond(3e8), Seconds(2e-6)));
    const Metrics full = rig.metrics({5, 50}, d), found = rig.metrics({5, 50}, d, 1, at_period);
    expect_same(found, full);
    const auto any = [&](auto holds) {
      return std::ranges::any_of(rig.linked.program.roles, holds);
    };
    // Steps with other ops than those before begin no period: a warm-up, an exchange now and then.
    const bool change = any([](const program::Role& role) {
      return std::ranges::any_of(role.ops, [](const program::Op& op) {
        return op.when.every > 1 || std::max(op.when.from, op.when.until) > 10;
      });
    });
    if (any([](const program::Role& role) { return role.free_running; })) {
      EXPECT_EQ(found.period, 0);
    } else if (!change) {
      EXPECT_LE(found.steps_run, 20);
    }
  }
}

TEST(Period, OfHostsThatRunAheadAndHostsThatDoNot) {
  for (const double issue : {0.2e-6, 3e-6}) {
    model::ModelSpec model = test::small_model(4);
    model.software.forward_issue = model.software.backward_issue = Seconds(issue);
    const plan::Plan plan = test::plan_of("1f1b", 2, 2, 1, 4);
    const cluster::Cluster cluster = test::star(4, BytesPerSecond(3e8), Seconds(2e-6));
    const link::LinkedProgram linked =
        link::link(costs::with_host_lane(methods::compile(plan, model), model));
    const costs::Costs costs(linked, model, cluster, {});
    const auto run = [&](Stopping stopping) {
      MetricsSink sink(linked, model, cluster, costs, 1, {5, 50}, stopping);
      dry_run(linked, costs, cluster::Disturber({}, 4), Steps{5, 50}.begun(), sink);
      return sink.finish();
    };
    const Metrics found = run(at_period);
    EXPECT_GT(found.period, 0) << issue;
    expect_same(found, run({}));
  }
}

TEST(Steps, TheLastOneIsAsLongAsTheOthers) {
  // With two weight versions the next step's ops delay those of the last step.
  const test::Rig rig(test::plan_of("pipedream-2bw", 4, 1, 1, 8), test::small_model(4),
                      test::star(4, BytesPerSecond(3e8), Seconds(2e-6)));
  const Metrics few = rig.metrics({8, 2}), many = rig.metrics({8, 60});
  EXPECT_NEAR(few.mean_step, many.mean_step, 1e-9 * many.mean_step);
  EXPECT_NEAR(many.robustness, 1, 1e-9);
}

}  // namespace
}  // namespace rehearse::execution
