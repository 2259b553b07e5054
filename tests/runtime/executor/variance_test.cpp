// Tests the gradient variance of eq. 2 of Sun 2026. Compares the kernel with a two-pass computation
// in double, runs with different layouts of gradients with one process with autograd, and the
// variance of a sample of coordinates with the variance of all.
#include "engine/tensors/variance.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "engine/methods/strategy.h"
#include "runtime/kernels/optimizer.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

TEST(Observe, KeepsMeansAndDeviations) {
  // Coordinates (1, 5), (2, 5), (6, 2) over three steps: means 3 and 4, squared deviations 4 + 1 +
  // 9 = 14 and 1 + 1 + 4 = 6 (tests/engine/tensors/variance_test.cpp has the arithmetic).
  std::vector<float> state(5, 0.0F);
  for (const std::vector<float>& g : {std::vector<float>{1, 5}, {2, 5}, {6, 2}})
    observe(g.data(), program::DType::f32, 2, 1, {}, state.data());
  EXPECT_FLOAT_EQ(state[0], 3);
  EXPECT_FLOAT_EQ(state[1], 3);
  EXPECT_FLOAT_EQ(state[2], 4);
  EXPECT_FLOAT_EQ(state[3], 14);
  EXPECT_FLOAT_EQ(state[4], 6);
}

TEST(Observe, EqualsTwoPassesInDouble) {
  constexpr std::int64_t n = 1003;
  constexpr int steps = 60, stride = 7;
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.3F, 1);
  for (const program::DType type : {program::DType::f32, program::DType::bf16, program::DType::f16})
    for (const float loss_scale : {1.0F, 4.0F}) {
      std::vector<at::Tensor> gradients;
      std::vector<float> state(1 + 2 * program::observed_entries(n, stride), 0.0F);
      for (int t = 0; t < steps; ++t) {
        at::Tensor g = at::empty({n}, at::kFloat);
        for (std::int64_t i = 0; i < n; ++i) g.data_ptr<float>()[i] = normal(random);
        g = g.to(type == program::DType::f32    ? at::kFloat
                 : type == program::DType::bf16 ? at::kBFloat16
                                                : at::kHalf);
        observe(g.data_ptr(), type, n, stride, {.loss_scale = &loss_scale}, state.data());
        gradients.push_back(g.to(at::kDouble) / loss_scale);
      }
      const at::Tensor all = at::stack(gradients);
      const at::Tensor mean = all.mean(0), squares = (all - mean).square().sum(0);
      const auto observed = static_cast<std::size_t>(program::observed_entries(n, stride));
      EXPECT_EQ(state[0], steps);
      for (std::size_t i = 0; i < observed; ++i) {
        const auto at = static_cast<std::int64_t>(i) * stride;
        EXPECT_NEAR(state[1 + i], mean[at].item<double>(), 1e-6);
        const double expected = squares[at].item<double>();
        EXPECT_NEAR(state[1 + observed + i], expected, 1e-5 * expected);
      }
    }
}

TEST(Observe, StopsAtWhatIsNotFinite) {
  for (const float bad : {std::nanf(""), HUGE_VALF, 1e30F}) {
    std::vector<float> state(7, 0.0F);
    std::vector<float> g = {1, 2, 3};
    observe(g.data(), program::DType::f32, 3, 1, {}, state.data());
    g[1] = bad;
    observe(g.data(), program::DType::f32, 3, 1, {}, state.data());
    EXPECT_EQ(state[0], -2);  // the second observation
    EXPECT_FALSE(std::isfinite(state[4 + 1]));
    EXPECT_TRUE(std::isfinite(state[4 + 0]) && std::isfinite(state[4 + 2]));
    const std::vector<float> stopped = state;
    g[1] = 2;
    observe(g.data(), program::DType::f32, 3, 1, {}, state.data());
    EXPECT_EQ(state[0], stopped[0]);
    EXPECT_EQ(state[1], stopped[1]);
  }
}

TEST(Observe, LeavesOutAStepThatIsSkipped) {
  const std::vector<float> g = {1, 2};
  const float overflow = HUGE_VALF;
  std::vector<float> state(5, 0.0F);
  observe(g.data(), program::DType::f32, 2, 1, {.squares = &overflow}, state.data());
  EXPECT_EQ(state, std::vector<float>(5, 0.0F));
}

/// The gradient variances that rank 0 has at the end of a run. Fails the test when a rank fails.
std::vector<tensors::LayerVariance> observed_in_processes(const job::Job& job) {
  at::set_num_threads(1);
  const std::vector<Outcome> outcomes =
      run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
        costs::Profile profile;
        profile.variances = train(job, environment, {.quiet = true}).variances;
        return to_json(profile);
      });
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].status, 0) << "rank " << rank << ": " << outcomes[rank].text;
    EXPECT_EQ(outcomes[rank].text, outcomes[0].text);  // every rank plans with the same numbers
  }
  if (outcomes[0].status != 0) return {};
  return costs::parse_profile(outcomes[0].text, "rank 0").variances;
}

struct Method {
  std::string name = {};
  plan::Plan plan = {};
};

job::Job job_of(const Method& method, const ScratchFolder& folder, int observe) {
  plan::Plan plan = method.plan;
  plan.exchange.observe = observe;
  job::Job job = small_job(plan, folder.path(), "");
  job.train.steps = 6;
  job.train.eval_batches = 0;
  return job;
}

std::vector<Method> layouts() {
  return {{"ddp", {.method = "ddp", .mesh = {.dp = 2}}},
          {"zero1", {.method = "zero1", .mesh = {.dp = 2}, .exchange = {.sharding = {.zero = 1}}}},
          {"zero2",
           {.method = "zero2",
            .mesh = {.dp = 3},
            .schedule = {.global_batch = 12},
            .exchange = {.sharding = {.zero = 2}}}},
          {"zero3", {.method = "zero3", .mesh = {.dp = 2}, .exchange = {.sharding = {.zero = 3}}}},
          {"pipeline",
           {.method = "1f1b", .mesh = {.pp = 2, .dp = 2}, .schedule = {.micro_batches = 2}}},
          {"megatron", {.method = "megatron", .mesh = {.dp = 2, .tp = 2}}},
          {"server", {.method = "ps-sync", .mesh = {.dp = 2, .servers = 1}}}};
}

class ObservedRun : public testing::TestWithParam<Method> {};

TEST_P(ObservedRun, IsEquation2OfOneProcessWithAutograd) {
  const ScratchFolder folder;
  write_data(folder);
  const job::Job job = job_of(GetParam(), folder, 1);
  const model::ModelSpec& model = job.model;
  std::vector<reference::Weights> gradients;
  ReferenceRules rules;
  rules.combine = [&](int, const std::vector<reference::Weights>& by_worker) {
    gradients.push_back(by_worker[0]);
    return by_worker[0];
  };
  const auto found = observed_in_processes(job);
  train_reference(job, rules);
  ASSERT_EQ(gradients.size(), 6U);
  std::map<Id, std::pair<double, double>> expected;  // eq. 2, mean squared norm
  for (Id g = 0; g < model.groups.size(); ++g)
    for (const model::TensorSpec& spec : model.groups[g].tensors) {
      std::vector<at::Tensor> steps;
      for (const auto& step : gradients) steps.push_back(step.at(spec.name).to(at::kDouble));
      const at::Tensor all = at::stack(steps);
      auto& [variance, norm] = expected[tensors::layer_of(model, g)];
      variance += (all - all.mean(0)).square().sum().item<double>() / 6;
      norm += all.square().sum().item<double>() / 6;
    }
  ASSERT_EQ(found.size(), expected.size());
  for (const tensors::LayerVariance& layer : found) {
    const auto [variance, norm] = expected.at(layer.segment);
    EXPECT_NEAR(layer.total, variance, 1e-4 * variance) << model.segments[layer.segment].name;
    EXPECT_NEAR(layer.square_norm, norm, 1e-4 * norm);
    EXPECT_EQ(layer.observed_steps, 6);
    EXPECT_EQ(layer.observed, layer.elements);
    EXPECT_DOUBLE_EQ(layer.per_element, layer.total / static_cast<double>(layer.elements));
    EXPECT_EQ(layer.model, model.name);
  }
}
INSTANTIATE_TEST_SUITE_P(Layouts, ObservedRun, testing::ValuesIn(layouts()),
                         [](const auto& info) { return info.param.name; });

TEST(ObservedSample, IsCloseToTheWhole) {
  const ScratchFolder folder;
  write_data(folder);
  const Method ddp{"ddp", {.method = "ddp", .mesh = {.dp = 2}}};
  const auto whole = observed_in_processes(job_of(ddp, folder, 1));
  const auto sampled = observed_in_processes(job_of(ddp, folder, tensors::default_observe_stride));
  ASSERT_EQ(whole.size(), sampled.size());
  double sum = 0;
  std::int64_t seen = 0, all = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const double error = sampled[i].total / whole[i].total - 1;
    // At least 60 coordinates of each layer, or all.
    EXPECT_GE(sampled[i].observed, std::min<std::int64_t>(whole[i].elements, 60));
    EXPECT_LT(std::abs(error), 0.5) << "segment " << whole[i].segment;
    sum += std::abs(error);
    seen += sampled[i].observed, all += whole[i].elements;
  }
  EXPECT_LT(sum / static_cast<double>(whole.size()), 0.2);
  EXPECT_LT(seen * 2, all);
}

TEST(ObservedRuns, InHalfPrecisionTakeTheLossScaleOut) {
  const ScratchFolder folder;
  write_data(folder);
  const auto single =
      observed_in_processes(job_of({"", {.method = "ddp", .mesh = {.dp = 2}}}, folder, 1));
  plan::Plan plan{.method = "ddp", .mesh = {.dp = 2}, .precision = program::DType::f16};
  const auto half = observed_in_processes(job_of({"", plan}, folder, 1));
  ASSERT_EQ(single.size(), half.size());
  for (std::size_t i = 0; i < single.size(); ++i) {
    EXPECT_GE(half[i].observed_steps, 3);
    EXPECT_LE(half[i].observed_steps, 6);  // steps that overflow are not observed
    if (half[i].observed_steps == 6) {
      EXPECT_NEAR(half[i].total, single[i].total, 0.05 * single[i].total);
    }
  }
}

TEST(ObservedRuns, DoNotChangeTrainingNorItsCheckpoints) {
  const ScratchFolder folder, plain, watched;
  write_data(folder);
  const auto job = [&](const std::string& out, int observe, int steps) {
    plan::Plan plan{.method = "zero2", .mesh = {.dp = 2}, .exchange = {.sharding = {.zero = 2}}};
    plan.exchange.observe = observe;
    job::Job job = small_job(plan, folder.path(), out);
    job.train.steps = steps;
    return job;
  };
  const TrainedRun a = train_in_processes(job(plain.path(), 0, 8));
  const TrainedRun first = train_in_processes(job(watched.path(), 5, 4));
  EXPECT_EQ(first.losses[3], a.losses[3]);
  // Resume with and without observing. Checkpoints do not contain observations.
  for (const int observe : {0, 5}) {
    const ScratchFolder out;
    job::Job rest = job(out.path(), observe, 8);
    const TrainedRun b =
        train_in_processes(rest, {.resume = true, .resume_from = first.checkpoint});
    ASSERT_EQ(b.losses.size(), 4U);
    for (int t = 0; t < 4; ++t) EXPECT_EQ(b.losses[t], a.losses[4 + t]);
  }
}

TEST(ObservedRuns, NameLayerAndStepOfGradientsThatAreNotFinite) {
  const ScratchFolder folder;
  write_data(folder);
  job::Job job = job_of(
      {"", {.method = "ddp", .mesh = {.dp = 2}, .optimizer = plan::Optimizer::sgd}}, folder, 1);
  job.train.lr = 1e30;
  job.train.warmup_steps = 0;
  for (const Outcome& outcome : fail_in_processes(job, {})) {
    EXPECT_NE(outcome.status, 0);
    EXPECT_THAT(outcome.text, testing::HasSubstr("the gradient of layer "));
    EXPECT_THAT(outcome.text, testing::ContainsRegex("not finite at step [12]:"));
  }
}

}  // namespace
}  // namespace rehearse::runtime
