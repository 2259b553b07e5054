// LLaMA's kernels over plain memory, compared with the same by tensor operations; grouped queries
// compared with one key-value head for each; rotary frequencies compared with published values.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "models/layers.h"
#include "models/rotary.h"
#include "tests/models/ranks.h"

namespace rehearse::models {
namespace {

constexpr std::array dtypes = {at::kFloat, at::kBFloat16, at::kHalf};

/// Of one rounding in the type.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 1e-3 : 8e-3;
}
at::Tensor numbers(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape).to(dtype);
}
double off(const at::Tensor& a, const at::Tensor& b) {
  return difference(a.to(at::kDouble), b.to(at::kDouble));
}

TEST(LlamaKernels, NormsAgreeWithTensorOperations) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : dtypes) {
    const at::Tensor x = numbers({2, 37, 83}, dtype), grad = numbers({2, 37, 83}, dtype);
    const NormParams weight = {numbers({83}, dtype)};
    const Norm norm = rms_forward(x, weight, 1e-2);
    const Norm expected = rms_forward_by_tensors(x, weight, 1e-2);
    EXPECT_LE(off(norm.y, expected.y), tolerance(dtype));
    EXPECT_LE(off(norm.rstd, expected.rstd), 1e-6);
    EXPECT_EQ(norm.mean.numel(), 0);
    for (const bool add : {false, true}) {
      const NormParams d = {at::ones({83}, dtype)}, expected_d = {at::ones({83}, dtype)};
      const at::Tensor g = rms_backward(grad, x, norm.rstd, weight, d, add);
      const at::Tensor e = rms_backward_by_tensors(grad, x, norm.rstd, weight, expected_d, add);
      EXPECT_LE(off(g, e), tolerance(dtype));
      EXPECT_LE(off(d.weight, expected_d.weight), tolerance(dtype));
    }
  }
}

// The sum of 1 and a weight of bf16 is not rounded to bf16: 1 + 2^-9 would become 1.
TEST(LlamaKernels, OffsetsOfNormsAreAddedInF32) {
  at::manual_seed(5);
  const at::Tensor x = numbers({1, 3, 64}, at::kBFloat16);
  const at::Tensor small = at::full({64}, 0x1p-9, at::kBFloat16);
  const NormParams sum = {small.to(at::kFloat).add(1)};
  for (const auto& forward : {rms_forward, rms_forward_by_tensors}) {
    const at::Tensor y = forward(x, {small, {}, 1}, 1e-6).y;
    EXPECT_TRUE(at::equal(y, forward(x, sum, 1e-6).y));
    EXPECT_FALSE(at::equal(y, forward(x, {at::ones({64})}, 1e-6).y));
  }
}

TEST(LlamaKernels, GatesAgreeWithTensorOperations) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : dtypes) {
    const at::Tensor inner = numbers({23, 2 * 61}, dtype), grad = numbers({23, 61}, dtype);
    for (const Activation activation : {Activation::swiglu, Activation::geglu}) {
      at::Tensor found = inner.clone(), expected = inner.clone();
      gated_backward(grad, found, activation);
      gated_backward_by_tensors(grad, expected, activation);
      EXPECT_LE(off(found, expected), 2 * tolerance(dtype));
    }
  }
}

TEST(LlamaKernels, LayersWithAWindowHaveABaseOfTheirOwn) {
  model::ModelSpec m = small(model::Family::llama);
  m.window = 4, m.global_every = 2, m.rope_theta = 1e6, m.local_rope_theta = 100;
  m.rope_scaling = {.type = model::RopeScaling::Type::linear, .factor = 8};
  const Rotary local = rotary_of(m, 0), global = rotary_of(m, 1);
  for (std::size_t i = 0; i < global.frequencies.size(); ++i) {
    const double turn = -2.0 * static_cast<double>(i) / m.head_dim;
    EXPECT_FLOAT_EQ(local.frequencies[i], static_cast<float>(std::pow(100, turn)));
    EXPECT_FLOAT_EQ(global.frequencies[i], static_cast<float>(std::pow(1e6, turn) / 8));
  }
  m.local_rope_theta = 0;
  EXPECT_EQ(rotary_of(m, 0).frequencies, global.frequencies);
}

TEST(LlamaKernels, RotationsAgreeWithTensorOperationsAndUndoThemselves) {
  at::manual_seed(3);
  model::ModelSpec m = small(model::Family::llama);
  Rotary rotary = rotary_of(m);
  EXPECT_EQ(rotary.factor, 1);
  rotary.factor = 1.5;  // twice: 2.25
  const std::int64_t d = m.head_dim;
  for (const at::ScalarType dtype : dtypes) {
    // Two of five heads of a row, as queries are a slice of the row of queries, keys and values.
    const at::Tensor wide = numbers({3, 29, 5, d}, dtype), before = wide.clone();
    const at::Tensor x = wide.narrow(2, 1, 2), expected = x.clone();
    rotate(x, rotary, {}, Turn::forward);
    rotate_by_tensors(expected, rotary, {}, Turn::forward);
    EXPECT_LE(off(x, expected), tolerance(dtype));
    EXPECT_GT(off(x, before.narrow(2, 1, 2)), 0.1);
    EXPECT_TRUE(wide.narrow(2, 3, 2).equal(before.narrow(2, 3, 2)));
    rotate(x, rotary, {}, Turn::back);
    EXPECT_LE(off(x, before.narrow(2, 1, 2).mul(2.25)), 2 * tolerance(dtype));
  }
}

TEST(LlamaKernels, FrequenciesAreScaledAsLlama3Scales) {
  // transformers 5.23.0, rope_type "llama3" of Llama 3.1: head size 128, theta 500,000, factor 8.
  model::ModelSpec m = small(model::Family::llama);
  m.head_dim = 128;
  m.rope_theta = 500'000;
  const std::vector<float> plain = rotary_of(m).frequencies;
  m.rope_scaling.factor = 8;
  const std::vector<float> scaled = rotary_of(m).frequencies;
  ASSERT_EQ(scaled.size(), 64U);
  EXPECT_EQ(scaled[0], 1);
  EXPECT_NEAR(scaled[20] / 0.0165604409, 1, 1e-5);
  EXPECT_NEAR(scaled[28] / 0.00321144611, 1, 1e-5);
  EXPECT_NEAR(scaled[30] / 0.00137189368, 1, 1e-5);
  EXPECT_NEAR(scaled[32] / 0.000524846022, 1, 1e-5);
  EXPECT_NEAR(scaled[34] / 0.000178507791, 1, 1e-5);
  EXPECT_NEAR(scaled[36] / 7.78465546e-05, 1, 1e-5);
  EXPECT_NEAR(scaled[40] / 3.42810235e-05, 1, 1e-5);
  EXPECT_NEAR(scaled[63] / 3.06892588e-07, 1, 1e-5);
  EXPECT_NEAR(scaled[63] / plain[63] * 8, 1, 1e-6);
}

// What transformers 5.23.0 computes (modeling_rope_utils.py).
void expect_frequencies(const Rotary& rotary, const std::map<std::size_t, double>& expected) {
  for (const auto& [pair, frequency] : expected)
    EXPECT_NEAR(rotary.frequencies.at(pair) / frequency, 1, 1e-5) << "pair " << pair;
}

TEST(LlamaKernels, FrequenciesAreScaledAsYarnScales) {
  // Qwen 2.5 7B on 131,072 tokens.
  model::ModelSpec m = small(model::Family::llama);
  m.head_dim = 128;
  m.rope_theta = 1'000'000;
  m.rope_scaling = {.type = model::RopeScaling::Type::yarn,
                    .factor = 4,
                    .low = 1,
                    .high = 32,
                    .positions = 32768};
  const Rotary rotary = rotary_of(m);
  EXPECT_EQ(rotary.frequencies.size(), 64U);
  EXPECT_NEAR(rotary.factor, 1.138629436111989, 1e-6);
  expect_frequencies(rotary, {{0, 1},
                              {20, 0.0133352149},
                              {23, 0.00697830599},
                              {24, 0.00537532149},
                              {30, 0.00106436096},
                              {36, 0.000179841154},
                              {39, 6.4903943e-05},
                              {40, 4.44569851e-05},
                              {45, 1.51074091e-05},
                              {63, 3.10234441e-07}});
  m.rope_scaling.attention = 1.25;
  EXPECT_EQ(rotary_of(m).factor, 1.25F);
}

TEST(LlamaKernels, FrequenciesAreDividedByOneNumberOrByOneEach) {
  model::ModelSpec m = small(model::Family::llama);
  m.head_dim = 128;
  m.rope_scaling = {.type = model::RopeScaling::Type::linear, .factor = 4};
  expect_frequencies(rotary_of(m),
                     {{0, 0.25}, {1, 0.216491088}, {40, 0.000790569466}, {63, 2.88695483e-05}});
  EXPECT_EQ(rotary_of(m).factor, 1);
  m.head_dim = 6;
  m.rope_scaling = {.type = model::RopeScaling::Type::longrope,
                    .factor = 32,
                    .positions = 4096,
                    .shorter = {1.0, 1.02, 1.3},
                    .longer = {1.1, 20.0, 64.0}};
  m.seq_len = 4096;
  expect_frequencies(rotary_of(m), {{0, 1}, {1, 0.0455057658}, {2, 0.00165725732}});
  m.seq_len = 4097;
  expect_frequencies(rotary_of(m), {{0, 0.909090877}, {1, 0.00232079416}, {2, 3.36630364e-05}});
  EXPECT_NEAR(rotary_of(m).factor, 1.1902380714238083, 1e-6);
}

TEST(LlamaKernels, GroupedQueriesAreThoseOfRepeatedKeys) {
  at::manual_seed(4);
  for (const Reach& reach : {Reach{true, 0}, Reach{true, 5}}) {
    const Queries grouped = {numbers({2, 19, 6, 8}, at::kFloat), numbers({2, 19, 2, 8}, at::kFloat),
                             numbers({2, 19, 2, 8}, at::kFloat)};
    const Queries repeated = {grouped.q, at::repeat_interleave(grouped.k, 3, 2),
                              at::repeat_interleave(grouped.v, 3, 2)};
    const AttentionOutput a = attend(grouped, reach), b = attend(repeated, reach);
    EXPECT_LE(off(a.out, b.out), 1e-6);
    EXPECT_LE(off(a.log_sum, b.log_sum), 1e-6);
    const at::Tensor grad = numbers({2 * 19, 48}, at::kFloat);
    const auto found = attend_backward(grad, grouped, a.out, a.log_sum, reach);
    const auto expected = attend_backward(grad, repeated, b.out, b.log_sum, reach);
    EXPECT_LE(off(found[0], expected[0]), 1e-6);
    for (const std::size_t i : {1, 2})
      EXPECT_LE(off(found[i].view({-1, 2, 8}), expected[i].view({-1, 2, 3, 8}).sum(2)), 1e-6);
  }
}

// A cap so high that it changes nothing gives what the fused kernel gives, over parts of queries of
// which the last is smaller than the others.
TEST(LlamaKernels, AHighCapIsNone) {
  at::manual_seed(6);
  const std::int64_t tokens = 2 * model::capped_queries + 9;
  const Queries x = {numbers({2, tokens, 6, 8}, at::kFloat), numbers({2, tokens, 2, 8}, at::kFloat),
                     numbers({2, tokens, 2, 8}, at::kFloat)};
  const at::Tensor grad = numbers({2 * tokens, 48}, at::kFloat);
  for (const Reach& reach :
       {Reach{false, 0, 0.4}, Reach{true, 0, 0.4}, Reach{true, 70, 0.4}, Reach{true, 5, 0.4}}) {
    Reach high = reach, low = reach;
    high.cap = 3000, low.cap = 1;
    const AttentionOutput a = attend(x, high), b = attend(x, reach);
    EXPECT_LE(off(a.out, b.out), 1e-5);
    EXPECT_LE(off(a.log_sum, b.log_sum), 1e-5);
    EXPECT_GT(off(attend(x, low).out, b.out), 0.1);
    const auto found = attend_backward(grad, x, a.out, a.log_sum, high);
    const auto expected = attend_backward(grad, x, b.out, b.log_sum, reach);
    for (const std::size_t i : {0, 1, 2}) EXPECT_LE(off(found[i], expected[i]), 1e-5);
  }
}

}  // namespace
}  // namespace rehearse::models
