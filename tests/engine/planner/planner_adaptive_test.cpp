// Tests the planner for jobs of the adaptive method: sparse gradients if they are faster, dense
// ones otherwise or if the job says so, and the plainest of equally fast plans.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/link/link.h"
#include "engine/methods/passes/passes.h"
#include "engine/methods/strategy.h"
#include "engine/planner/adaptive.h"
#include "engine/planner/exchange/sparsity.h"
#include "engine/planner/planner.h"
#include "engine/tensors/variance.h"

namespace rehearse::planner {
namespace {

/// Sixteen samples on eight devices of three nodes: the network limits the step.
job::Job job_of(const std::string& method, const std::string& more = "") {
  return job::parse_job_to_plan(
      "model.name = \"bert-paper-110m\"\ncluster.name = \"paper\"\n"
      "cluster.world_size = 8\nmethod.name = \"" +
          method +
          "\"\nmethod.pp = 1\nmethod.tp = 1\ntrain.global_batch = 16\n"
          "method.s_min = 0.98\nmethod.s_max = 0.99\n" +
          more,
      "job.toml");
}

bool whole(const plan::Plan& plan) {
  return std::all_of(plan.exchange.sparse.layers.begin(), plan.exchange.sparse.layers.end(),
                     [](const auto& x) { return x.reduction == plan::Reduction::dense; });
}

TEST(AdaptivePlans, AreSparseWhereThatIsFaster) {
  const plan::Decision plain = decide(job_of("ddp"), nullptr, {});
  const plan::Decision sparse = decide(job_of("adaptive"), nullptr, {});
  EXPECT_TRUE(plain.plan.exchange.sparse.layers.empty());
  EXPECT_FALSE(whole(sparse.plan));
  EXPECT_EQ(sparse.plan.method, "adaptive");
  EXPECT_LT(sparse.seconds, 0.9 * plain.seconds);
  // Each layer has the density of eq. 3 and its fastest exchange.
  const job::Job job = job_of("adaptive");
  const auto chosen = fastest_exchanges(sparse.plan, job.model, job.cluster, nullptr);
  ASSERT_EQ(chosen.size(), sparse.plan.exchange.sparse.layers.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    EXPECT_EQ(chosen[i].exchange.reduction, sparse.plan.exchange.sparse.layers[i].reduction);
    EXPECT_EQ(chosen[i].exchange.density, sparse.plan.exchange.sparse.layers[i].density);
  }
  // The warm-up plan is the plan that the planner chooses if no gradient may be sparse.
  EXPECT_EQ(summary_of(sparse.warm_up), summary_of(plain.plan));
}

TEST(AdaptivePlans, AreWholeWhereTheJobSaysSo) {
  EXPECT_TRUE(decide(job_of("adaptive", "method.reduction = \"dense\"\n"), nullptr, {})
                  .plan.exchange.sparse.layers.empty());
}

TEST(AdaptivePlans, AreSparseThroughoutWhereTheJobSaysSo) {
  // 90% kept: no search would choose sparse exchanges.
  const plan::Decision found = decide(
      job::parse_job_to_plan("model.name = \"bert-paper-110m\"\ncluster.name = \"paper\"\n"
                             "cluster.world_size = 8\nmethod.name = \"adaptive\"\n"
                             "train.global_batch = 64\nmethod.s_min = 0\nmethod.s_max = 0.2\n"
                             "method.reduction = \"two_level\"\nmethod.coding = \"bitmap\"\n",
                             "job.toml"),
      nullptr, {});
  ASSERT_GT(found.plan.mesh.dp, 1);
  for (const plan::LayerExchange& x : found.plan.exchange.sparse.layers) {
    EXPECT_EQ(x.reduction, plan::Reduction::two_level);
    EXPECT_EQ(x.coding, program::Coding::bitmap);
  }
  EXPECT_TRUE(found.warm_up.exchange.sparse.layers.empty());
  // It is not compared with whole sums, which the job forbids and which are faster here.
  for (const plan::Choice& choice : found.choices)
    for (const plan::Alternative& other : choice.runners_up)
      EXPECT_EQ(other.why.find("faster"), std::string::npos) << choice.name << ": " << other.why;
}

TEST(AdaptivePlans, OfSparseGradientsTheFastestIsFoundWithoutHints) {
  // Over slow links an exchange takes longer than compute, so the order of compute misleads.
  const auto seconds = [](const std::string& more) {
    return decide(job::parse_job_to_plan(
                      "model.name = \"bert-paper-110m\"\ncluster.name = \"paper\"\n"
                      "cluster.links.network.bandwidth = \"25Gb/s\"\nmethod.name = \"adaptive\"\n"
                      "method.precision = \"fp16\"\nmethod.reduction = \"sparse\"\n" +
                          more,
                      "job.toml"),
                  nullptr, {})
        .seconds;
  };
  EXPECT_LE(seconds(""), 1.01 * seconds("method.pp = 8"));
}

TEST(AdaptivePlans, FollowTheProfilesVariances) {
  const job::Job job = job_of("adaptive");
  costs::Profile profile;
  for (Id s = 0; s < job.model.segments.size(); ++s)
    if (!job.model.segments[s].groups.empty())
      profile.variances.push_back({.model = job.model.name,
                                   .segment = s,
                                   .observed_steps = 10,
                                   .total = 100.0 - s,
                                   .per_element = 1.0 + s});
  const plan::Decision found = decide(job, &profile, {});
  ASSERT_FALSE(whole(found.plan));
  // The first segment has the smallest variance, so its density is 1 - s_max.
  const auto& layers = found.plan.exchange.sparse.layers;
  ASSERT_NE(layers.front().reduction, plan::Reduction::dense);
  EXPECT_NEAR(layers.front().density, 0.01, 1e-12);
  for (std::size_t i = 1; i < layers.size(); ++i)
    if (layers[i].reduction != plan::Reduction::dense) {
      EXPECT_GT(layers[i].density, layers.front().density);
    }
}

/// Eq. 2 as printed is a sum over the layer's entries, by which other layers are the steady ones.
TEST(AdaptivePlans, MayTakeTheTotalVariance) {
  const job::Job job = job_of("adaptive");
  costs::Profile profile;
  for (Id s = 0; s < job.model.segments.size(); ++s)
    profile.variances.push_back(
        {.model = job.model.name, .segment = s, .total = 100.0 - s, .per_element = 1.0 + s});
  const auto order = [&](plan::Variance variance) {
    plan::Plan plan = job.plan;
    plan.exchange.sparse.variance = variance;
    const std::vector<double> found = densities(plan, job.model, &profile);
    EXPECT_NEAR(std::ranges::max(found), 1 - plan.exchange.sparse.s_min, 1e-12);
    EXPECT_NEAR(std::ranges::min(found), 1 - plan.exchange.sparse.s_max, 1e-12);
    return found.front() < found.back();
  };
  EXPECT_TRUE(order(plan::Variance::per_element));
  EXPECT_FALSE(order(plan::Variance::total));
}

TEST(AdaptivePlans, LeaveOutTensorGroupsThatTheProfileDidNotTime) {
  const std::string text =
      "model.name = \"gpt-tiny\"\ncluster.name = \"this-machine\"\ncluster.world_size = 2\n"
      "method.name = \"adaptive\"\ntrain.global_batch = 8\n";
  const auto tensor_groups = [](const plan::Decision& d) {
    return std::any_of(d.infeasible.begin(), d.infeasible.end(), [](const plan::Infeasible& i) {
      return i.constraint.find("none with tp 2") != std::string::npos &&
             i.nearest == "rehearse profile --tp 1,2 measures them";
    });
  };
  const job::Job job = job::parse_job_to_plan(text, "job.toml");
  costs::Profile profile;
  for (const int tp : {1, 2}) {
    for (const model::Segment& s : job.model.segments)
      for (const program::Pass pass :
           {program::Pass::forward, program::Pass::backward, program::Pass::recompute})
        profile.segments.push_back({.model = job.model.name,
                                    .kind = s.kind,
                                    .pass = pass,
                                    .samples = 4,
                                    .seq_len = job.model.seq_len,
                                    .tp = tp,
                                    .dtype = program::DType::f32,
                                    .seconds = 1e-3 / tp,
                                    .device_kind = job.cluster.kinds()[0].name});
    const plan::Decision found = decide(job, &profile, {});
    EXPECT_EQ(tensor_groups(found), tp == 1);
    // A job that states tp gets it nevertheless.
    EXPECT_EQ(decide(job::parse_job_to_plan(text + "method.tp = 2\n", "job.toml"), &profile, {})
                  .plan.mesh.tp,
              2);
  }
  EXPECT_FALSE(tensor_groups(decide(job, nullptr, {})));
}

TEST(AdaptivePlans, WithoutPlacementDevicesStandInOrderWithEqualSamples) {
  const std::string hetero =
      "model.name = \"bert-paper-110m\"\ncluster.name = \"paper\"\nmethod.name = \"adaptive\"\n";
  const plan::Decision placed = decide(job::parse_job_to_plan(hetero, "job.toml"), nullptr, {});
  const plan::Decision blind = decide(
      job::parse_job_to_plan(hetero + "adaptive.placement = false\n", "job.toml"), nullptr, {});
  EXPECT_TRUE(blind.plan.schedule.shares.empty());
  EXPECT_TRUE(std::is_sorted(blind.plan.placement.rank_to_device.begin(),
                             blind.plan.placement.rank_to_device.end()));
  EXPECT_LT(placed.seconds, blind.seconds);
}

TEST(AdaptivePlans, OfEquallyFastOnesThePlainIsTaken) {
  const job::Job job = job::parse_job_to_plan(
      "model.name = \"bert-paper-110m\"\ncluster.name = \"paper\"\nmethod.name = \"ddp\"\n",
      "job.toml");
  const plan::Decision found = decide(job, nullptr, {});
  // ZeRO saves almost nothing of such a long step.
  EXPECT_EQ(found.plan.exchange.sharding.zero, 0);
  ASSERT_FALSE(found.runners_up.empty());
  double fastest = found.seconds;
  for (const plan::RunnerUp& r : found.runners_up) fastest = std::min(fastest, r.seconds);
  EXPECT_LE(found.seconds, fastest * (1 + plainer_within));
  EXPECT_LT(fastest, found.seconds);  // otherwise the test shows nothing
}

TEST(AdaptivePlans, KindsOfReplicasOnNodesOfSeveralSizesChooseAlike) {
  // RTX 4090s that are no leaders are in nodes of two and of four devices, V100s only in nodes of
  // four.
  const job::Job job = job::parse_job_to_plan(
      "model.name = \"bert-paper-110m\"\ncluster.name = \"paper\"\nmethod.name = \"adaptive\"\n"
      "method.precision = \"fp16\"\n",
      "job.toml");
  plan::Plan plan = job.plan;
  plan.mesh.dp = 32, plan.schedule.micro_batches = 1, plan.exchange.sharding.zero = 1;
  for (const Id device : plan.placement.rank_to_device)
    plan.schedule.shares.push_back(job.cluster.kind_of(device).name == "RTX 4090" ? 20 : 4);
  plan.placement.node_of = nodes_of(plan, job.cluster);
  plan.exchange.sparse.layers.assign(job.model.segments.size(),
                                     {.density = 0.175, .reduction = plan::Reduction::two_level});
  plan = methods::prepare(plan, job.model);
  EXPECT_NO_THROW(link::link(methods::choose_collectives(
      methods::compile(plan, job.model), job.cluster, plan.placement.rank_to_device)));
}

TEST(AdaptiveRuns, WarmUpObservesAndIsFollowedByTheDecidedPlan) {
  job::Job job = job_of("adaptive", "adaptive.warmup_steps = 7\n");
  const plan::Decision decided = decide(job, nullptr, {});
  job.plan = decided.plan;
  const AdaptiveRun run = adaptive_run(job, &decided);
  EXPECT_TRUE(run.warms_up);
  EXPECT_TRUE(run.first.exchange.sparse.layers.empty());
  EXPECT_EQ(run.first.exchange.observe, tensors::default_observe_stride);
  ASSERT_TRUE(run.policy);
  EXPECT_EQ(run.policy->next(0, 0), 7);
  EXPECT_EQ(run.policy->next(8, 1), std::nullopt);
  EXPECT_EQ(summary_of(run.policy->observe({.step = 7}, run.first).value()),
            summary_of(decided.plan));
  // A job of another method keeps its plan.
  EXPECT_FALSE(adaptive_run(job_of("ddp")).policy);
}

TEST(AdaptiveRuns, WarmUpIsAQuarterOfAShortRun) {
  const auto steps = [](const std::string& more) {
    return job_of("adaptive", more).adaptive.warmup_steps;
  };
  EXPECT_EQ(steps("train.steps = 40\n"), 10);
  EXPECT_EQ(steps("train.steps = 1000\n"), 50);
  EXPECT_EQ(steps("train.steps = 2\n"), 1);
  EXPECT_EQ(steps("train.steps = 40\nadaptive.warmup_steps = 30\n"), 30);
}

}  // namespace
}  // namespace rehearse::planner
