// Which gradients share a buffer in Horovod, against ready times worked out by hand: on the test's
// devices every kernel takes 1 us, so all layers' backwards are equally long.
#include "engine/planner/exchange/fusion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/methods/strategy.h"
#include "engine/planner/search/evaluator.h"
#include "tests/engine/rig.h"

namespace rehearse::planner {
namespace {

constexpr int layers = 12;

plan::Plan plan_with(double cycle, int micro_batches = 1) {
  plan::Plan plan = test::plan_of("horovod", 1, 2, 1, micro_batches);
  plan.exchange.bucket = {}, plan.exchange.fusion.cycle_time = Seconds(cycle);
  return methods::prepare(plan, test::small_model(layers));
}

/// Seconds of the backward of each segment, from the program's costs.
std::vector<double> seconds_of_backwards(const plan::Plan& plan) {
  const test::Rig rig(plan, test::small_model(layers), test::fast(2));
  std::vector<double> out(rig.model.segments.size());
  for (Id o = 0; o < rig.linked.program.roles[0].ops.size(); ++o)
    if (const auto* pass = std::get_if<program::Compute>(&rig.linked.program.roles[0].ops[o].work);
        pass != nullptr && pass->pass == program::Pass::backward)
      out[pass->segment] = rig.costs.seconds(0, o, 0);
  return out;
}

TEST(Fusion, EndsABufferWhereACycleEnds) {
  const model::ModelSpec model = test::small_model(layers);
  const std::vector<double> seconds = seconds_of_backwards(plan_with(1));
  for (const double cycles_in_backward : {1.5, 3.0, 7.0, 40.0}) {
    double all = 0;
    for (const double one : seconds) all += one;
    const double cycle = all / cycles_in_backward;
    std::vector<Id> expected;
    double now = 0;
    for (Id s = static_cast<Id>(seconds.size()); s-- > 1;) {
      now += seconds[s];
      if (std::floor(now / cycle) < std::floor((now + seconds[s - 1]) / cycle))
        expected.push_back(s);
    }
    for (const int micro_batches : {1, 3})  // only the last one's backward counts
      EXPECT_EQ(ends_of_cycles(plan_with(cycle, micro_batches), model, test::fast(2), nullptr),
                expected)
          << cycles_in_backward;
  }
}

TEST(Fusion, WithoutACycleEachSegmentIsABufferAndWithALongOneAllAre) {
  const model::ModelSpec model = test::small_model(layers);
  const auto ends = ends_of_cycles(plan_with(0), model, test::fast(2), nullptr);
  EXPECT_EQ(ends.size(), model.segments.size() - 1);
  EXPECT_TRUE(ends_of_cycles(plan_with(1), model, test::fast(2), nullptr).empty());
}

TEST(Fusion, BuffersAreWhatTheProgramReduces) {
  const model::ModelSpec model = test::small_model(layers);
  for (const std::vector<Id>& ends : {std::vector<Id>{}, {20, 10}, {24, 23, 2}}) {
    plan::Plan plan = plan_with(0.001);
    plan.exchange.fusion.fused_after = ends;
    const program::Program program = methods::compile(plan, model);
    for (const program::Role& role : program.roles) {
      std::size_t sums = 0;
      for (const program::Op& op : role.ops)
        if (std::holds_alternative<program::Collective>(op.work) &&
            role.lanes[op.lane].name == "dp")
          ++sums;
      EXPECT_EQ(sums, ends.size() + 1);
    }
  }
}

job::Job job_with(const std::vector<std::string>& more) {
  std::vector<std::string> set{"method.autotune=true"};
  set.insert(set.end(), more.begin(), more.end());
  return job::parse_job(
      "[model]\nname = \"gpt2-124m\"\n[cluster]\nname = \"paper\"\nworld_size = 8\n"
      "[method]\nname = \"horovod\"\n[train]\nglobal_batch = 32\n",
      "job.toml", set);
}

TEST(Autotune, IsNeverSlowerThanTheDefaultsAndKeepsWhatAJobStates) {
  const job::Job tuned = with_cycles(job_with({}), nullptr);
  job::Job plain = job_with({"method.autotune=false"});
  plain = with_cycles(std::move(plain), nullptr);
  EXPECT_EQ(plain.plan.exchange.bucket_bytes(), 128 << 20);
  EXPECT_EQ(plain.plan.exchange.fusion.cycle_time, Seconds(0.001));
  Evaluator evaluator(tuned.model, tuned.cluster, nullptr);
  EXPECT_LE(evaluator.seconds(tuned.plan), evaluator.seconds(plain.plan));
  const job::Job stated =
      with_cycles(job_with({"method.bucket=3MiB", "method.cycle_time=7ms"}), nullptr);
  EXPECT_EQ(stated.plan.exchange.bucket_bytes(), 3 << 20);
  EXPECT_EQ(stated.plan.exchange.fusion.cycle_time, Seconds(0.007));
  const job::Job half = with_cycles(job_with({"method.cycle_time=50ms"}), nullptr);
  EXPECT_EQ(half.plan.exchange.fusion.cycle_time, Seconds(0.05));
}

TEST(Autotune, LeavesMethodsWithoutACoordinatorAlone) {
  job::Job job = job_with({"method.name=ddp", "method.autotune=false"});
  const plan::Plan before = job.plan;
  EXPECT_EQ(with_cycles(std::move(job), nullptr).plan.exchange.bucket, before.exchange.bucket);
}

}  // namespace
}  // namespace rehearse::planner
