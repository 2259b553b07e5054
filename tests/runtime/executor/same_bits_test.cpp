// Compares kernels that are compiled for several instruction sets with the same arithmetic in plain
// loops. Results must be equal bit by bit, so that replicas on different hosts stay equal. A
// processor tests only the version that it runs; tests/cli/test_processors.py runs this file on
// processors with fewer instructions.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "runtime/kernels/accumulate.h"
#include "runtime/kernels/floats.h"
#include "runtime/kernels/optimizer.h"
#include "runtime/kernels/select_kernels.h"

namespace rehearse::runtime {
namespace {

constexpr std::int64_t elements = 10'007;  // not a multiple of a vector; more than a block
using Values = std::vector<float>;

Values random_values(unsigned seed, float least = -1, float most = 1) {
  std::mt19937 engine(seed);
  Values values(elements);
  for (float& v : values)  // std::uniform_real_distribution differs between standard libraries
    v = least + (most - least) * static_cast<float>(engine() >> 8) * 0x1p-24F;
  return values;
}

/// Compares element by element, so that a failure names the element.
void expect_same_bits(const Values& a, const Values& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i]), std::bit_cast<std::uint32_t>(b[i]))
        << what << " " << i << ": " << a[i] << " " << b[i];
  }
}

/// a b, rounded. This file is compiled for baseline x86-64, which has no fused multiply-add; on
/// other processors the volatile keeps the compiler from fusing the product with a sum.
float product(float a, float b) {
  volatile float p = a * b;
  return p;
}

TEST(SameBits, AdamW) {
  const OptimizerStep step{
      .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3};
  Values param = random_values(1), m = random_values(2), v = random_values(3, 0, 1);
  const Values grad = random_values(4);
  Values p2 = param, m2 = m, v2 = v;
  update(step,
         {.param = param.data(),
          .grad = grad.data(),
          .moment1 = m.data(),
          .moment2 = v.data(),
          .elements = elements},
         true, scalars_of(step, 3, 0.37));
  const auto keep = static_cast<float>(1 - step.lr * step.weight_decay);
  const auto step_size = static_cast<float>(step.lr / (1 - std::pow(step.beta1, 3.0)));
  const auto root = static_cast<float>(std::sqrt(1 - std::pow(step.beta2, 3.0)));
  const auto new1 = static_cast<float>(1 - step.beta1), new2 = static_cast<float>(1 - step.beta2);
  for (std::size_t i = 0; i < p2.size(); ++i) {
    const float g = product(grad[i], 0.37F);
    m2[i] += product(g - m2[i], new1);
    v2[i] = product(v2[i], static_cast<float>(step.beta2)) + product(product(g, g), new2);
    const float change = m2[i] / (std::sqrt(v2[i]) / root + static_cast<float>(step.eps));
    p2[i] = product(p2[i], keep) - product(step_size, change);
  }
  expect_same_bits(m, m2, "first moment");
  expect_same_bits(v, v2, "second moment");
  expect_same_bits(param, p2, "parameter");
}

TEST(SameBits, Sgd) {
  Values param = random_values(1), buffer = random_values(2), p2 = param, b2 = buffer;
  const Values grad = random_values(3);
  update(
      {.kind = plan::Optimizer::sgd, .lr = 0.03, .momentum = 0.9, .weight_decay = 0.01},
      {.param = param.data(), .grad = grad.data(), .moment1 = buffer.data(), .elements = elements},
      true, {.grad_scale = 0.37F});
  for (std::size_t i = 0; i < p2.size(); ++i) {
    b2[i] = product(0.9F, b2[i]) + (product(grad[i], 0.37F) + product(0.01F, p2[i]));
    p2[i] -= product(0.03F, b2[i]);
  }
  expect_same_bits(buffer, b2, "momentum");
  expect_same_bits(param, p2, "parameter");
}

TEST(SameBits, SumOfSquares) {
  const Values values = random_values(1);
  double expected = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += float_block) {
    const std::size_t end = std::min(values.size(), begin + float_block);
    std::array<float, 16> sums = {};
    std::size_t i = begin;
    for (; i + 16 <= end; i += 16)
      for (std::size_t lane = 0; lane < 16; ++lane)
        sums[lane] += product(values[i + lane], values[i + lane]);
    double sum = 0;
    for (; i < end; ++i) sum += static_cast<double>(values[i]) * values[i];
    for (const float s : sums) sum += s;
    expected += sum;
  }
  EXPECT_EQ(sum_of_squares(values.data(), program::DType::f32, elements), expected);
}

TEST(SameBits, ObservedVariance) {
  Values state(1 + 2 * elements), mean(elements), squares(elements);
  const float loss_scale = 2.7F, unscale = 1 / loss_scale;
  for (int count = 1; count <= 3; ++count) {
    const Values values = random_values(static_cast<unsigned>(count));
    observe(values.data(), program::DType::f32, elements, 1, {.loss_scale = &loss_scale},
            state.data());
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const float value = product(unscale, values[i]), before = value - mean[i];
      mean[i] += before / static_cast<float>(count);
      squares[i] += product(before, value - mean[i]);
    }
  }
  expect_same_bits(Values(state.begin() + 1, state.begin() + 1 + elements), mean, "mean");
  expect_same_bits(Values(state.begin() + 1 + elements, state.end()), squares, "squares");
}

// Every f16 value, infinities and NaNs included, plus various finite f16 values.
TEST(SameBits, SumsOfF16) {
  std::vector<std::uint16_t> from(1 << 16), into(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::uint16_t>(i);
    into[i] = to_f16(static_cast<float>(i % 37) * 0x1p-20F - 3e-5F + static_cast<float>(i % 5));
  }
  const std::vector<std::uint16_t> before = into;
  accumulate(into.data(), from.data(), static_cast<std::int64_t>(into.size()), program::DType::f16);
  for (std::size_t i = 0; i < into.size(); ++i) {
    const float sum = from_f16(before[i]) + from_f16(from[i]);
    ASSERT_EQ(into[i], to_f16(sum)) << before[i] << " + " << from[i];
  }
}

TEST(SameBits, Selection) {
  const Values gradient = random_values(1), old = random_values(2);
  const auto least = std::bit_cast<std::uint32_t>(0.8F);
  for (const EntryRule rule : {EntryRule{true, true, 1}, EntryRule{true, false, 1},
                               EntryRule{true, true, 0.37F}, EntryRule{true, false, 0.37F},
                               EntryRule{false, true, 0.37F}, EntryRule{false, false, 0.37F}}) {
    Values residual = old, values(elements + 16), expected_values, expected = old;
    std::vector<std::uint32_t> indices(elements + 16), expected_indices;
    const std::int64_t found = pass(rule, gradient.data(), residual.data(), elements, 5, least,
                                    values.data(), indices.data());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const float v = rule.use ? gradient[i] + old[i] : gradient[i];
      const bool taken = magnitude_of(v) >= least;
      // With beta = 1, what stays is v itself.
      const float stays = rule.use && rule.beta == 1 ? v : gradient[i] + product(rule.beta, old[i]);
      expected[i] = rule.remove && taken ? stays - v : stays;
      if (!taken) continue;
      expected_values.push_back(v);
      expected_indices.push_back(static_cast<std::uint32_t>(i) + 5);
    }
    values.resize(static_cast<std::size_t>(found));
    indices.resize(static_cast<std::size_t>(found));
    expect_same_bits(values, expected_values, "value");
    EXPECT_EQ(indices, expected_indices);
    expect_same_bits(residual, expected, "residual");
  }
}

TEST(SameBits, LargestKept) {
  Values values = random_values(1), back(elements), expected_back(elements), expected;
  std::vector<std::uint32_t> indices(elements), expected_indices;
  for (std::size_t i = 0; i < indices.size(); ++i)
    indices[i] = static_cast<std::uint32_t>((i * 7919) % elements);
  std::vector<std::uint32_t> room(elements);
  const Threshold threshold = threshold_of(values.data(), elements, 1234, room.data());
  ASSERT_EQ(threshold.ties, threshold.equal);  // the case that has an AVX-512 version
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (magnitude_of(values[i]) >= threshold.bits) {
      expected.push_back(values[i]);
      expected_indices.push_back(indices[i]);
    } else {
      expected_back[indices[i]] = values[i];
    }
  }
  values.resize(elements + 16);
  indices.resize(elements + 16);
  const auto kept = static_cast<std::size_t>(
      keep_largest(values.data(), indices.data(), elements, threshold, back.data()));
  ASSERT_EQ(kept, 1234);
  values.resize(kept);
  indices.resize(kept);
  expect_same_bits(values, expected, "value");
  EXPECT_EQ(indices, expected_indices);
  expect_same_bits(back, expected_back, "dropped");
}

}  // namespace
}  // namespace rehearse::runtime
