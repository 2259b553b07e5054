// Every method in real processes against plain single-process autograd: the exact synchronous ones
// against synchronous training, the others against emulations of their own definitions.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "engine/errors.h"
#include "engine/link.h"
#include "engine/strategy.h"
#include "engine/tensor_map.h"
#include "tests/runtime/training.h"

namespace rehearse {
namespace {

constexpr double tolerance = 1e-5;

struct Case {
  std::string name = {};
  Plan plan = {};
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

void expect_follows(const Job& job, const TrainedRun& run, const ReferenceRun& reference) {
  ASSERT_EQ(run.losses.size(), reference.losses.size());
  for (std::size_t step = 0; step < run.losses.size(); ++step)
    EXPECT_NEAR(run.losses[step] / reference.losses[step], 1, tolerance) << "loss of step " << step;
  EXPECT_LT(run.losses.back(), 0.98 * run.losses.front()) << "nothing was learnt";
  const reference::Weights weights = weights_of(run.checkpoint, job.model);
  EXPECT_NEAR(global_norm(weights) / global_norm(reference.weights), 1, tolerance);
  if (job.plan.optimizer == Optimizer::sgd) {
    const auto [difference, name] = worst_difference(weights, reference.weights);
    EXPECT_LE(difference, tolerance) << name;
  }
}

class Synchronous : public testing::TestWithParam<Case> {};

TEST_P(Synchronous, FollowsPlainTraining) {
  ScratchFolder data, out;
  write_data(data);
  for (const Optimizer optimizer : {Optimizer::sgd, Optimizer::adamw}) {
    Plan plan = GetParam().plan;
    plan.optimizer = optimizer;
    Job job = small_job(plan, data.path(), out.file(optimizer == Optimizer::sgd ? "sgd" : "adamw"));
    if (plan.clip) job.train.clip = 0.5;
    const TrainedRun run = train_in_processes(job);
    if (HasFailure()) return;
    const ReferenceRun reference = train_reference(job);
    expect_follows(job, run, reference);
    EXPECT_NEAR(run.validation_loss / reference.validation_loss, 1, tolerance);
  }
}

std::vector<Case> synchronous_cases() {
  return {
      {"ddp_2", {.method = "ddp", .dp = 2}},
      {"ddp_4_accumulating", {.method = "ddp", .dp = 4, .micro_batches = 2}},
      {"ddp_2_clipped_recomputing", {.method = "ddp", .dp = 2, .recompute = true, .clip = true}},
      {"zero1_2", {.method = "zero1", .dp = 2}},
      {"zero2_4_accumulating_clipped",
       {.method = "zero2", .dp = 4, .micro_batches = 2, .clip = true}},
      {"zero3_2", {.method = "zero3", .dp = 2, .micro_batches = 2}},
      {"zero3_4_kept", {.method = "zero3", .dp = 4, .keep_gathered = true}},
      {"megatron_tp2", {.method = "megatron", .tp = 2}},
      {"megatron_tp2_dp2_sequence_parallel_clipped",
       {.method = "megatron", .dp = 2, .tp = 2, .sequence_parallel = true, .clip = true}},
      {"gpipe_2", {.method = "gpipe", .pp = 2, .micro_batches = 4}},
      {"one_f_one_b_2_dp2", {.method = "1f1b", .pp = 2, .dp = 2, .micro_batches = 4}},
      {"one_f_one_b_4_clipped", {.method = "1f1b", .pp = 4, .micro_batches = 4, .clip = true}},
      {"interleaved_2", {.method = "interleaved", .pp = 2, .micro_batches = 4}},
      {"megatron_2x2x2", {.method = "megatron", .pp = 2, .dp = 2, .tp = 2, .micro_batches = 2}},
      {"ddp_2_unequal_shares", {.method = "ddp", .dp = 2, .micro_batches = 2, .shares = {3, 1}}},
      {"zero2_3_unequal_shares_clipped",
       {.method = "zero2", .dp = 3, .micro_batches = 2, .shares = {1, 2, 1}, .clip = true}},
      {"one_f_one_b_2_dp2_unequal_shares",
       {.method = "1f1b", .pp = 2, .dp = 2, .micro_batches = 2, .shares = {3, 1}}},
      {"megatron_tp2_dp2_unequal_shares",
       {.method = "megatron", .dp = 2, .tp = 2, .micro_batches = 2, .shares = {1, 3}}},
      {"ps_sync_2_1", {.method = "ps-sync", .dp = 2, .servers = 1}},
      {"ps_sync_2_2", {.method = "ps-sync", .dp = 2, .servers = 2}},
  };
}
INSTANTIATE_TEST_SUITE_P(Methods, Synchronous, testing::ValuesIn(synchronous_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Numerics, MaskedModelsFollowThoughRanksCountDifferently) {
  ScratchFolder data;
  write_data(data);
  for (const Plan& plan :
       {Plan{.method = "megatron", .dp = 2, .tp = 2, .optimizer = Optimizer::sgd},
        // Shards end in padding behind the parts that tensor ranks hold whole.
        Plan{.method = "zero2",
        .dp = 3,
        .tp = 2,
        .global_batch = 12,
        .clip = true,
        .optimizer = Optimizer::sgd}}) {
    SCOPED_TRACE(plan.method);
    const ScratchFolder out;
    const Job job = small_job(plan, data.path(), out.path(), "bert-tiny");
    const TrainedRun run = train_in_processes(job);
    if (HasFailure()) return;
    const ReferenceRun reference = train_reference(job);
    ASSERT_EQ(run.losses.size(), reference.losses.size());
    for (std::size_t step = 0; step < run.losses.size(); ++step)
      EXPECT_NEAR(run.losses[step] / reference.losses[step], 1, tolerance) << "step " << step;
    EXPECT_NEAR(run.validation_loss / reference.validation_loss, 1, tolerance);
    EXPECT_NEAR(global_norm(weights_of(run.checkpoint, job.model)) / global_norm(reference.weights),
                1, tolerance);
  }
}

TEST(Numerics, DropoutDoesNotDependOnTheMesh) {
  ScratchFolder data, out;
  write_data(data);
  const auto losses = [&](const Plan& plan) {
    Job job = small_job(plan, data.path(), "");
    job.model.dropout = 0.1;
    job.train.steps = 6;
    return train_in_processes(job).losses;
  };
  const std::vector<double> one = losses({.method = "ddp", .optimizer = Optimizer::sgd});
  const std::vector<double> many = losses({.method = "megatron",
                                           .pp = 2,
                                           .dp = 2,
                                           .tp = 2,
                                           .micro_batches = 2,
                                           .optimizer = Optimizer::sgd});
  if (HasFailure()) return;
  ASSERT_EQ(one.size(), many.size());
  for (std::size_t step = 0; step < one.size(); ++step)
    EXPECT_NEAR(many[step] / one[step], 1, tolerance) << "step " << step;
  Job without = small_job({.method = "ddp", .optimizer = Optimizer::sgd}, data.path(), "");
  without.train.steps = 6;
  EXPECT_GT(std::fabs(train_in_processes(without).losses[0] / one[0] - 1), 1e-4)
      << "dropout did nothing";
}

TEST(Numerics, SixteenBitsFollowFullPrecisionRoughly) {
  ScratchFolder data, out;
  write_data(data);
  const auto losses = [&](DType precision) {
    const Job job = small_job({.method = "zero2", .dp = 2, .precision = precision, .clip = true},
                              data.path(), "");
    return train_in_processes(job).losses;
  };
  const std::vector<double> full = losses(DType::f32);
  for (const DType precision : {DType::bf16, DType::f16}) {
    const std::vector<double> half = losses(precision);
    if (HasFailure()) return;
    ASSERT_EQ(half.size(), full.size());
    // fp16 begins with a scale of 65536 and may skip the first steps.
    for (std::size_t step = 0; step < 3; ++step) EXPECT_NEAR(half[step] / full[step], 1, 0.02);
    EXPECT_LT(half.back(), 0.9 * half.front());
  }
}

TEST(Numerics, EveryMethodIsHeldToAReference) {
  std::set<std::string> held = {"pipedream-2bw", "topk-sync", "ps-ssp", "ps-async",
                                "adaptive" /* sparse_exact_test.cpp */};
  for (const Case& c : synchronous_cases()) held.insert(c.plan.method);
  for (const auto& [name, strategy] : strategies())
    EXPECT_TRUE(held.contains(name)) << name << " is in no numerics test";
}

TEST(Numerics, TwoVersionsFollowTheirDefinition) {
  // W(t+1) = W(t) - nu grad f(W(t-1)), Narayanan et al. 2021, section 3.2
  ScratchFolder data, out;
  write_data(data);
  for (const bool unequal : {false, true}) {
    Plan plan{.method = "pipedream-2bw", .pp = 2, .micro_batches = 4, .optimizer = Optimizer::sgd};
    if (unequal) plan.dp = 2, plan.micro_batches = 2, plan.shares = {3, 1};
    const Job job = small_job(plan, data.path(), out.file(unequal ? "unequal" : "equal"));
    const TrainedRun run = train_in_processes(job);
    if (HasFailure()) return;
    expect_follows(job, run, train_reference(job, {.staleness = 1}));
  }
}

TEST(Numerics, StaleSynchronousFollowsItsDefinition) {
  ScratchFolder data, out;
  write_data(data);
  const Job job = small_job(
      {.method = "ps-ssp", .dp = 2, .servers = 1, .staleness = 2, .optimizer = Optimizer::sgd},
      data.path(), out.path());
  const TrainedRun run = train_in_processes(job);
  if (HasFailure()) return;
  expect_follows(job, run, train_reference(job, {.staleness = 2}));
}

/// Top-k with error feedback by its definition: buckets as the program has them, selection by
/// sorting.
class TopK {
 public:
  explicit TopK(const Job& job)
      : linked_(link(compile(job.plan, job.model))),
        model_(job.model),
        map_(map_tensors(linked_, job.model)[0]),
        residuals_(job.plan.dp) {
    for (const Op& op : linked_.program.roles[0].ops)
      if (const auto* kernel = std::get_if<Kernel>(&op.work);
          kernel != nullptr && kernel->kind == Local::select)
        keep_[linked_.program.roles[0].views[find(op, Slot::residual)->view].storage] =
            kernel->keep;
  }

  reference::Weights operator()(const std::vector<reference::Weights>& by_worker) {
    reference::Weights sum;
    for (const auto& [name, gradient] : by_worker[0]) sum[name] = at::zeros_like(gradient);
    for (const auto& [storage, keep] : keep_)
      for (std::size_t worker = 0; worker < by_worker.size(); ++worker) {
        std::vector<std::pair<std::string, std::int64_t>> where;  // of each element of the bucket
        std::vector<float> values;
        for (const Piece& piece : map_.storages[storage].pieces)
          for (const TensorSpec& spec : model_.groups[piece.group].tensors) {
            const at::Tensor flat = by_worker[worker].at(spec.name).contiguous().view(-1);
            for (std::int64_t i = 0; i < flat.numel(); ++i) where.emplace_back(spec.name, i);
            values.insert(values.end(), flat.data_ptr<float>(),
                          flat.data_ptr<float>() + flat.numel());
          }
        std::vector<float>& residual = residuals_[worker][storage];
        residual.resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) residual[i] += values[i];
        std::vector<std::size_t> order(values.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          return std::fabs(residual[a]) > std::fabs(residual[b]);
        });
        for (std::int64_t i = 0; i < keep; ++i) {
          const auto& [name, element] = where[order[i]];
          sum.at(name).view(-1).data_ptr<float>()[element] += residual[order[i]];
          residual[order[i]] = 0;
        }
      }
    return sum;
  }

 private:
  LinkedProgram linked_;
  const ModelSpec& model_;
  RankMap map_;
  std::map<Id, std::int64_t> keep_ = {};
  std::vector<std::map<Id, std::vector<float>>> residuals_;
};

TEST(Numerics, TopKFollowsItsDefinition) {
  // Which entries are the largest may turn on a rounding error, so few steps, all losses.
  ScratchFolder data, out;
  write_data(data);
  for (const std::vector<int>& shares : {std::vector<int>{}, std::vector<int>{3, 5}}) {
    Job job =
        small_job({.method = "topk-sync", .dp = 2, .shares = shares, .optimizer = Optimizer::sgd},
                  data.path(), out.file(shares.empty() ? "equal" : "unequal"));
    if (!shares.empty()) job.train.steps = 10;
    const TrainedRun run = train_in_processes(job);
    if (HasFailure()) return;
    TopK rule(job);
    const ReferenceRun reference = train_reference(
        job,
        {.combine = [&](int, const auto& by_worker) { return rule(by_worker); }, .workers = 2});
    expect_follows(job, run, reference);
  }
}

TEST(Numerics, AsynchronousWorkersLearn) {
  ScratchFolder data, out;
  write_data(data);
  Job job = small_job({.method = "ps-async", .dp = 2, .servers = 2, .optimizer = Optimizer::sgd},
                      data.path(), out.path());
  job.train.eval_every = 10;
  const TrainedRun run = train_in_processes(job);
  if (HasFailure()) return;
  ASSERT_EQ(run.losses.size(), 20U);
  EXPECT_LT(run.losses.back(), 0.98 * run.losses.front());
  EXPECT_LT(run.validation_loss, 0.98 * run.losses.front());
}

TEST(Numerics, ADroppedMicroBatchShows) {
  ScratchFolder data, out;
  write_data(data);
  const Job job =
      small_job({.method = "ddp", .dp = 2, .optimizer = Optimizer::sgd}, data.path(), out.path());
  const TrainedRun run = train_in_processes(job);
  if (HasFailure()) return;
  const ReferenceRun broken = train_reference(job, {.dropped_samples = 1});
  EXPECT_GT(worst_difference(weights_of(run.checkpoint, job.model), broken.weights).first,
            100 * tolerance);
}

}  // namespace
}  // namespace rehearse
