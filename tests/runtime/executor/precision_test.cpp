// Training in 16 bits in real processes: it follows full precision, gradients may be summed in
// fp32, and the optimizer may keep nothing in fp32.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

TEST(Precision, SixteenBitsFollowFullPrecisionRoughly) {
  ScratchFolder data, out;
  write_data(data);
  const auto losses = [&](program::DType precision) {
    const job::Job job =
        small_job({.method = "zero2", .mesh = {.dp = 2}, .precision = precision, .clip = true},
                  data.path(), "");
    return train_in_processes(job).losses;
  };
  const std::vector<double> full = losses(program::DType::f32);
  for (const program::DType precision : {program::DType::bf16, program::DType::f16}) {
    const std::vector<double> half = losses(precision);
    if (HasFailure()) return;
    ASSERT_EQ(half.size(), full.size());
    // fp16 starts with a loss scale of 65536 and may skip the updates of the first steps.
    for (std::size_t step = 0; step < 3; ++step) EXPECT_NEAR(half[step] / full[step], 1, 0.02);
    EXPECT_LT(half.back(), 0.9 * half.front());
  }
}

// The same sum of gradients, over micro-batches of one rank or over ranks: with fp32 gradients the
// two runs differ far less than with sums in bf16.
TEST(Precision, Fp32GradientsKeepTheSumsOfBf16) {
  ScratchFolder data, out;
  write_data(data);
  const auto weights = [&](int dp, bool fp32_gradients) {
    const job::Job job =
        small_job({.method = "ddp",
                   .mesh = {.dp = dp},
                   .schedule = {.micro_batches = 4 / dp},
                   .exchange = {.fp32_gradients = fp32_gradients},
                   .precision = program::DType::bf16,
                   .optimizer = plan::Optimizer::sgd},
                  data.path(), fmt::format("{}/{}-{}", out.path(), dp, fp32_gradients));
    return weights_of(train_in_processes(job).checkpoint, job.model, tensors::StorageKind::master);
  };
  const auto difference = [&](bool fp32_gradients) {
    const auto by_micro_batches = weights(1, fp32_gradients), by_ranks = weights(4, fp32_gradients);
    return worst_difference(by_micro_batches, by_ranks).first;
  };
  const double rounded = difference(false), kept = difference(true);
  if (HasFailure()) return;
  EXPECT_GT(rounded, 0);
  EXPECT_LT(kept, 0.2 * rounded);
}

TEST(Precision, Fp32GradientsWithEveryKindOfSum) {
  ScratchFolder data, out;
  write_data(data);
  for (const plan::Plan& with : std::vector<plan::Plan>{
           {.method = "zero1", .mesh = {.dp = 2}},
           {.method = "zero2", .mesh = {.dp = 2}, .schedule = {.micro_batches = 2}},
           {.method = "zero3", .mesh = {.dp = 2}, .schedule = {.micro_batches = 2}, .clip = true},
           {.method = "1f1b", .mesh = {.pp = 2}, .schedule = {.micro_batches = 2}},
           {.method = "megatron", .mesh = {.dp = 2, .tp = 2}},
           {.method = "topk-sync", .mesh = {.dp = 2}},
           {.method = "ps-sync", .mesh = {.dp = 2, .servers = 1}}}) {
    SCOPED_TRACE(with.method);
    const auto losses = [&](program::DType precision) {
      plan::Plan plan = with;
      plan.precision = precision, plan.exchange.fp32_gradients = true;
      return train_in_processes(small_job(plan, data.path(), "")).losses;
    };
    const std::vector<double> full = losses(program::DType::f32);
    const std::vector<double> half = losses(program::DType::bf16);
    if (HasFailure()) return;
    ASSERT_EQ(half.size(), full.size());
    for (std::size_t step = 0; step < 3; ++step) EXPECT_NEAR(half[step] / full[step], 1, 0.02);
    EXPECT_LT(half.back(), 0.97 * half.front());
  }
}

// Of two ranks' gradients every way to divide the state makes the same sums, so the weights are the
// same bits. They are others than those of an fp32 copy or of fp32 moments, and the loss falls.
TEST(Precision, OptimizersInSixteenBitsLearnHoweverTheyAreDivided) {
  ScratchFolder data, out;
  write_data(data);
  struct Kept {
    std::vector<double> losses;
    reference::Weights weights;
  };
  const auto train = [&](const char* method, bool master_weights, bool bf16_moments) {
    const std::string folder =
        fmt::format("{}/{}-{}-{}", out.path(), method, master_weights, bf16_moments);
    const job::Job job = small_job({.method = method,
                                    .mesh = {.dp = 2},
                                    .precision = program::DType::bf16,
                                    .clip = true,
                                    .master_weights = master_weights,
                                    .bf16_moments = bf16_moments},
                                   data.path(), folder);
    const TrainedRun run = train_in_processes(job);
    if (testing::Test::HasFailure()) return Kept{};
    return Kept{run.losses, weights_of(run.checkpoint, job.model)};
  };
  const Kept one = train("ddp", false, true);
  if (HasFailure()) return;
  EXPECT_LT(one.losses.back(), 0.9 * one.losses.front());
  for (const char* method : {"zero1", "zero3"})
    EXPECT_EQ(worst_difference(train(method, false, true).weights, one.weights).first, 0) << method;
  for (const auto& [master_weights, bf16_moments] :
       {std::pair{false, false}, std::pair{true, true}, std::pair{true, false}}) {
    const Kept other = train("ddp", master_weights, bf16_moments);
    if (HasFailure()) return;
    EXPECT_GT(worst_difference(other.weights, one.weights).first, 0)
        << master_weights << bf16_moments;
    for (std::size_t step = 0; step < 3; ++step)
      EXPECT_NEAR(other.losses[step] / one.losses[step], 1, 0.02);
  }
}

}  // namespace
}  // namespace rehearse::runtime
