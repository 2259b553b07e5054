// Tests the first plan and the policy that [adaptive] and [method] of a job give a run.
#include "engine/planner/adaptive.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/base/errors.h"
#include "engine/job/plan_file.h"
#include "engine/methods/strategy.h"

namespace rehearse::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

job::Job job_of(const std::vector<std::string>& overrides) {
  return job::parse_job(
      "model.name = \"gpt2-124m\"\ncluster.name = \"paper\"\nmethod.name = \"ddp\"\n", "job.toml",
      overrides);
}

std::string plan_file(const std::string& name, const plan::Plan& plan, const job::Job& job) {
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / fmt::format("{}.toml", name)).string();
  plan::Decision decision;
  decision.plan = methods::prepare(plan, job.model);
  std::ofstream(path) << to_toml(decision, job::made_for(job.model, job.cluster, nullptr),
                                 job.model, job.cluster);
  return path;
}

TEST(AdaptiveRun, StaysWithTheJobsPlanUnlessAsked) {
  const job::Job job = job_of({});
  const AdaptiveRun run = adaptive_run(job);
  EXPECT_EQ(run.policy, nullptr);
  EXPECT_EQ(to_text(methods::compile(run.first, job.model)),
            to_text(methods::compile(job.plan, job.model)));
}

TEST(AdaptiveRun, FollowsOnePlanAfterTheOther) {
  const job::Job base = job_of({"train.global_batch=64", "cluster.world_size=8"});
  plan::Plan first = base.plan, second = base.plan;
  second.method = "megatron", second.mesh.pp = 2, second.mesh.dp = 2, second.mesh.tp = 2;
  second.schedule.micro_batches = 4, second.placement.stages.clear();
  const std::string a = plan_file("warm-up", first, base), b = plan_file("after", second, base);
  const job::Job job =
      job::parse_job(fmt::format("model.name = \"gpt2-124m\"\ncluster.name = \"paper\"\n"
                                 "method.plan = \"{}\"\nadaptive.warmup_plan = \"{}\"\n"
                                 "adaptive.warmup_steps = 7\n",
                                 b, a),
                     "job.toml");
  const AdaptiveRun run = adaptive_run(job);
  EXPECT_EQ(run.first.method, "ddp");
  ASSERT_NE(run.policy, nullptr);
  EXPECT_EQ(run.policy->next(0, 0), 7);
  EXPECT_EQ(run.policy->next(7, 1), std::nullopt);
  const auto plan = run.policy->observe({.step = 7}, run.first);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(to_text(methods::compile(*plan, job.model)),
            to_text(methods::compile(job.plan, job.model)));
}

TEST(AdaptiveRun, BalancesWhereAsked) {
  const AdaptiveRun run =
      adaptive_run(job_of({"adaptive.balance_every=20", "adaptive.balance_bound=0.05"}));
  ASSERT_NE(run.policy, nullptr);
  EXPECT_EQ(run.policy->next(1, 0), 20);
  EXPECT_EQ(run.policy->next(21, 4), 40);
}

TEST(AdaptiveRun, RefusesAWarmUpThatCannotBeFollowed) {
  const job::Job base = job_of({"train.global_batch=64", "cluster.world_size=8"});
  plan::Plan other = base.plan;
  other.schedule.global_batch = 32;
  const auto error = [&](const std::string& file) -> std::string {
    try {
      adaptive_run(job_of({"train.global_batch=64", "cluster.world_size=8",
                           fmt::format("adaptive.warmup_plan=\"{}\"", file)}));
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error(plan_file("smaller", other, base)),
              AllOf(HasSubstr("adaptive.warmup_plan"), HasSubstr("global batch 32"),
                    HasSubstr("the job's plan has 64")));
  other = base.plan;
  other.optimizer = plan::Optimizer::sgd;
  EXPECT_THAT(error(plan_file("sgd", other, base)), HasSubstr("has optimizer sgd"));
  EXPECT_THAT(error("nowhere.toml"), HasSubstr("does not exist"));
}

}  // namespace
}  // namespace rehearse::planner
