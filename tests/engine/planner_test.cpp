// The planner: its bounds are bounds, pruning loses nothing, the same question has the same answer,
// and what cannot be planned is refused with the reason.
#include "engine/planner/planner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/errors.h"
#include "engine/link.h"
#include "engine/planner/bounds.h"
#include "engine/planner/candidates.h"
#include "engine/planner/evaluator.h"
#include "engine/planner/sensitivity.h"
#include "engine/strategy.h"
#include "engine/workspace.h"

namespace rehearse {
namespace {

Job job_of(const std::string& model, const std::string& cluster, const std::string& more = "") {
  return parse_job_to_plan("model.name = \"" + model + "\"\ncluster.name = \"" + cluster +
                               "\"\nmethod.name = \"ddp\"\n" + more,
                           "job.toml");
}

/// Small enough to be tried in full.
std::vector<Job> small_jobs() {
  return {job_of("gpt-tiny", "dgx1", "train.global_batch = 16"),
          job_of("bert-tiny", "dgx-a100:2", "train.global_batch = 32\ncluster.world_size = 4"),
          job_of("bert-paper-110m", "paper",
                 "train.global_batch = 32\ncluster.world_size = 8\nmethod.bucket = \"25MB\"\n"
                 "method.order = \"pp,dp,tp\"")};
}

TEST(Planner, BoundsAreBelowWhatIsFound) {
  for (const Job& job : small_jobs()) {
    Bounds bounds(job, nullptr, {});
    Evaluator evaluator(job.model, job.cluster, nullptr, {});
    const auto plans = candidates(job, nullptr).plans;
    ASSERT_GT(plans.size(), 100u);
    for (std::size_t i = 0; i < plans.size(); i += plans.size() / 100) {
      SCOPED_TRACE(summary_of(plans[i]));
      const double seconds = evaluator.seconds(plans[i]);
      EXPECT_LE(bounds.seconds(plans[i]), seconds * (1 + 1e-9));
      EXPECT_GT(bounds.seconds(plans[i]), 0);
      const double whole = evaluator.memory(evaluator.link_fully(plans[i]), plans[i]).share;
      EXPECT_LE(evaluator.least_memory().share, whole);
      EXPECT_LE(bounds.memory(plans[i]).share, evaluator.least_memory().share * (1 + 1e-9));
    }
  }
}

TEST(Planner, PruningLosesNothing) {
  for (const Job& job : small_jobs()) {
    const Decision pruned = decide(job, nullptr, {});
    const Decision all = decide(job, nullptr, {.prune = false});
    EXPECT_EQ(summary_of(pruned.plan), summary_of(all.plan));
    EXPECT_EQ(pruned.seconds, all.seconds);
    EXPECT_GT(pruned.pruned, 0);
    EXPECT_EQ(all.pruned, 0);
    // Placement adds a candidate for each of the meshes that were scored.
    EXPECT_LE(pruned.candidates, all.candidates);
    EXPECT_LE(all.candidates - pruned.candidates, 8);
    for (const RunnerUp& r : all.runners_up) EXPECT_GE(r.seconds, pruned.seconds);
  }
}

TEST(Planner, SameQuestionSameAnswer) {
  const Job job = job_of("bert-paper-110m", "paper");
  const Decision a = decide(job, nullptr, {}), b = decide(job, nullptr, {});
  EXPECT_EQ(explain(a), explain(b));
  EXPECT_EQ(a.plan.rank_to_device, b.plan.rank_to_device);
}

TEST(Planner, BudgetCountsCandidates) {
  const Job job = job_of("bert-paper-110m", "paper");
  const Decision d = decide(job, nullptr, {.budget = 5, .prune = false});
  EXPECT_EQ(d.dry_run, 5);
  EXPECT_EQ(d.candidates, d.dry_run + d.beyond_budget);
  int last = 0, calls = 0;
  PlannerOptions options;
  options.progress = [&](int done, int total) {
    EXPECT_LE(done, total);
    EXPECT_GE(done, last);
    last = done, ++calls;
  };
  decide(job, nullptr, options);
  EXPECT_GT(calls, 1);
}

TEST(Planner, KeepsWhatTheJobStates) {
  const Decision d = decide(job_of("gpt2-124m", "dgx1",
                                   "train.global_batch = 64\nmethod.tp = 2\n"
                                   "method.recompute = true\nmethod.precision = \"fp16\""),
                            nullptr, {});
  EXPECT_EQ(d.plan.tp, 2);
  EXPECT_TRUE(d.plan.recompute);
  EXPECT_EQ(d.plan.precision, DType::f16);
  EXPECT_EQ(d.plan.global_batch, 64);
}

TEST(Planner, ThePlanFitsAndRuns) {
  const Job job = job_of("gpt2-1.5b", "paper", "method.precision = \"fp16\"");
  const Decision d = decide(job, nullptr, {});
  const LinkedProgram linked = link(compile(d.plan, job.model), job.model);
  for (const DeviceNeed& need : device_needs(linked, job.cluster, d.plan.rank_to_device))
    EXPECT_LE(static_cast<double>(need.need), memory_share * static_cast<double>(need.capacity));
  EXPECT_FALSE(d.choices.empty());
  EXPECT_FALSE(d.infeasible.empty());
  EXPECT_FALSE(d.would_change.empty());
}

TEST(Planner, FinalistsAreScoredAgain) {
  const Job job = job_of("gpt-tiny", "dgx1", "train.global_batch = 16");
  int scored = 0;
  PlannerOptions options;
  // Whoever computes least by this measure wins, whatever the dry run says.
  options.rescore = [&](const Plan& plan) {
    ++scored;
    return plan.recompute ? 1.0 : 2.0 + plan.micro_batches;
  };
  options.finalists = 7;
  const Decision d = decide(job, nullptr, options);
  EXPECT_EQ(scored, 7);
  EXPECT_EQ(d.seconds, d.plan.recompute ? 1.0 : 2.0 + d.plan.micro_batches);
  for (const RunnerUp& r : d.runners_up) EXPECT_GE(r.seconds, d.seconds);
}

TEST(Planner, NothingFits) {
  try {
    decide(job_of("gpt3-175b", "paper", "train.global_batch = 32"), nullptr, {});
    FAIL() << "175 billion parameters fit on 32 small GPUs";
  } catch (const InputError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("memory"), std::string::npos) << text;
    EXPECT_NE(text.find("nearest"), std::string::npos) << text;
  }
}

TEST(Planner, NamesTheKeyWithoutWhichSomethingFits) {
  const Job job = job_of("gpt2-1.5b", "paper", "method.pp = 1\nmethod.tp = 1\nmethod.zero = 0\n");
  try {
    decide(job, nullptr, {});
    FAIL() << "1.5 billion parameters and their optimizer fit on one RTX 4090";
  } catch (const InputError& e) {
    const std::string text = e.what();
    // Without the pipeline's or the tensor's 1 it would be split, and fit.
    EXPECT_NE(text.find("method.pp, method.tp, method.zero as stated"), std::string::npos) << text;
    EXPECT_NE(text.find("nearest: leave out method.pp: pp "), std::string::npos) << text;
  }
  Job freer = job;
  freer.where.erase("method.pp");
  EXPECT_GT(decide(freer, nullptr, {.finalists = 1}).plan.pp, 1);
}

TEST(Planner, WarnsOfTensorParallelismOverSlowLinks) {
  const Job paper = job_of("bert-paper-110m", "paper"), dgx = job_of("gpt2-124m", "dgx-a100:1");
  Plan plan{.method = "megatron", .pp = 1, .dp = 16, .tp = 2, .global_batch = 512};
  const auto warned = plan_warnings(prepare(plan, paper.model), paper.cluster);
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_NE(warned[0].find("tensor parallelism over a slow link"), std::string::npos);
  plan.dp = 4, plan.global_batch = 64;
  EXPECT_TRUE(plan_warnings(prepare(plan, dgx.model), dgx.cluster).empty());
}

TEST(Planner, FindsTheLinksBetweenNodes) {
  const Cluster paper = load_cluster("paper");
  const auto links = links_between_nodes(paper);
  // host > nic0 and nic0 > fabric, both ways, of 12 nodes.
  EXPECT_EQ(links.size(), 48u);
}

}  // namespace
}  // namespace rehearse
