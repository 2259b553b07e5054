// Compares the fused kernels with torch's optimizers written out in tensor operations and with
// brute force, and checks their definitions at the edges.

#include "runtime/kernels/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

constexpr std::int64_t elements = 10'007;  // not a multiple of a vector, more than a block

at::Tensor random_tensor(std::uint64_t seed, double scale = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(scale));
  at::Tensor tensor = at::empty({elements});
  std::generate_n(tensor.data_ptr<float>(), elements, [&] { return normal(engine); });
  return tensor;
}

/// One step that nothing skips.
void update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay,
            double grad_scale = 1) {
  runtime::update(step, interval, decay, scalars_of(step, step.step, grad_scale));
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(Optimizer, AdamWFollowsTorch) {
  at::Tensor param = random_tensor(1), m = at::zeros({elements}), v = at::zeros({elements});
  at::Tensor expected = param.clone(), em = m.clone(), ev = v.clone();
  const double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, lr = 1e-2, decay = 0.1;
  for (int step = 1; step <= 20; ++step) {
    const at::Tensor grad = random_tensor(100 + step, 0.1);
    update(
        {.lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = eps, .weight_decay = decay, .step = step},
        {.param = param.data_ptr(),
         .grad = grad.data_ptr(),
         .moment1 = m.data_ptr<float>(),
         .moment2 = v.data_ptr<float>(),
         .elements = elements},
        true);
    // torch/optim/adam.py, _single_tensor_adamw
    expected.mul_(1 - lr * decay);
    em.lerp_(grad, 1 - beta1);
    ev.mul_(beta2).addcmul_(grad, grad, 1 - beta2);
    const at::Tensor denominator = (ev.sqrt() / std::sqrt(1 - std::pow(beta2, step))).add_(eps);
    expected.addcdiv_(em, denominator, -lr / (1 - std::pow(beta1, step)));
  }
  EXPECT_LT(relative_error(param, expected), 1e-6);
  EXPECT_LT(relative_error(m, em), 1e-6);
  EXPECT_LT(relative_error(v, ev), 1e-6);
}

TEST(Optimizer, SgdFollowsTorch) {
  at::Tensor param = random_tensor(1), buffer = at::zeros({elements});
  at::Tensor expected = param.clone(), expected_buffer;
  for (int step = 1; step <= 20; ++step) {
    const at::Tensor grad = random_tensor(100 + step);
    update({.kind = plan::Optimizer::sgd,
            .lr = 0.05,
            .momentum = 0.9,
            .weight_decay = 0.01,
            .step = step},
           {.param = param.data_ptr(),
            .grad = grad.data_ptr(),
            .moment1 = buffer.data_ptr<float>(),
            .elements = elements},
           true);
    // torch/optim/sgd.py, _single_tensor_sgd: the first step's buffer is the gradient itself
    const at::Tensor g = grad.add(expected, 0.01);
    if (step == 1)
      expected_buffer = g.clone();
    else
      expected_buffer.mul_(0.9).add_(g);
    expected.add_(expected_buffer, -0.05);
  }
  EXPECT_LT(relative_error(param, expected), 1e-6);
}

TEST(Optimizer, WeightsThatDoNotDecayDoNot) {
  at::Tensor param = random_tensor(1), m = at::zeros({elements}), v = at::zeros({elements});
  const at::Tensor before = param.clone(), grad = at::zeros({elements});
  const OptimizerInterval interval{.param = param.data_ptr(),
                                   .grad = grad.data_ptr(),
                                   .moment1 = m.data_ptr<float>(),
                                   .moment2 = v.data_ptr<float>(),
                                   .elements = elements};
  update({.lr = 0.1, .weight_decay = 0.5}, interval, false);
  EXPECT_TRUE(at::equal(param, before));
  update({.lr = 0.1, .weight_decay = 0.5}, interval, true);
  EXPECT_LT(relative_error(param, before * 0.95), 1e-6);
}

TEST(Optimizer, SixteenBitWeightsFollowTheirMaster) {
  for (const auto& [type, scalar] : {std::pair{program::DType::bf16, at::kBFloat16},
                                     std::pair{program::DType::f16, at::kHalf}}) {
    at::Tensor master = random_tensor(1), m = at::zeros({elements}), v = at::zeros({elements});
    at::Tensor reference = master.clone(), rm = m.clone(), rv = v.clone();
    at::Tensor param = master.to(scalar);
    const at::Tensor grad = random_tensor(2).to(scalar);
    const OptimizerStep step{.lr = 1e-3, .weight_decay = 0.1};
    update(step,
           {.param = param.data_ptr(),
            .grad = grad.data_ptr(),
            .moment1 = m.data_ptr<float>(),
            .moment2 = v.data_ptr<float>(),
            .master = master.data_ptr<float>(),
            .param_type = type,
            .grad_type = type,
            .elements = elements},
           true, 0.5);
    const at::Tensor wide = grad.to(at::kFloat);
    update(step,
           {.param = reference.data_ptr(),
            .grad = wide.data_ptr(),
            .moment1 = rm.data_ptr<float>(),
            .moment2 = rv.data_ptr<float>(),
            .elements = elements},
           true, 0.5);
    EXPECT_TRUE(at::equal(master, reference));
    EXPECT_TRUE(at::equal(param, reference.to(scalar)));
  }
}

// Nothing in fp32: arithmetic in fp32, each result rounded once, as torch's fused AdamW.
TEST(Optimizer, SixteenBitStatesFollowTorchsFusedAdamW) {
  const auto half = [](std::uint64_t seed, double scale) {
    return random_tensor(seed, scale).to(at::kBFloat16);
  };
  at::Tensor param = half(1, 1), m = half(2, 0.1), v = half(3, 0.1).abs();
  for (int step = 1; step <= 5; ++step) {
    const at::Tensor grad = half(100 + step, 0.1);
    const at::Tensor theirs = param.clone(), their_m = m.clone(), their_v = v.clone();
    at::_fused_adamw_({theirs}, {grad}, {their_m}, {their_v}, {}, {at::full({}, double(step))},
                      1e-2, 0.9, 0.95, 0.1, 1e-8, false, false);
    const at::Tensor before = param.clone();
    update({.lr = 1e-2, .weight_decay = 0.1, .step = step},
           {.param = param.data_ptr(),
            .grad = grad.data_ptr(),
            .moment1 = m.data_ptr(),
            .moment2 = v.data_ptr(),
            .param_type = program::DType::bf16,
            .grad_type = program::DType::bf16,
            .moment_type = program::DType::bf16,
            .elements = elements},
           true);
    EXPECT_FALSE(at::equal(param, before));
    for (const auto& [ours, of_torch] :
         {std::pair{param, theirs}, std::pair{m, their_m}, std::pair{v, their_v}}) {
      const at::Tensor a = ours.to(at::kFloat), b = of_torch.to(at::kFloat);
      // Where fp32 differs in its last bit, the rounding may go to the other neighbour.
      EXPECT_LE(((a - b).abs() - b.abs() * 0x1p-7).max().item<double>(), 1e-6);
      EXPECT_GT(a.eq(b).to(at::kFloat).mean().item<double>(), 0.999);
    }
  }
}

TEST(Optimizer, SumsSquaresOfEveryType) {
  for (const auto& [type, scalar] :
       {std::pair{program::DType::f32, at::kFloat}, std::pair{program::DType::bf16, at::kBFloat16},
        std::pair{program::DType::f16, at::kHalf}}) {
    const at::Tensor values = random_tensor(3).to(scalar);
    const double expected = values.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(sum_of_squares(values.data_ptr(), type, elements), expected, 1e-6 * expected);
  }
  at::Tensor values = random_tensor(3);
  values[elements - 1] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(sum_of_squares(values.data_ptr(), program::DType::f32, elements)));
}

TEST(Optimizer, ReadsEveryHalf) {
  std::vector<std::int16_t> bits(1 << 16);
  std::iota(bits.begin(), bits.end(), std::int16_t{-32768});
  for (const auto& [type, scalar] :
       {std::pair{program::DType::bf16, at::kBFloat16}, std::pair{program::DType::f16, at::kHalf}})
    for (const std::int16_t& one : bits) {
      const double expected =
          at::from_blob(const_cast<std::int16_t*>(&one), {1}, scalar).item<double>();
      const double sum = sum_of_squares(&one, type, 1);
      if (std::isnan(expected))
        ASSERT_TRUE(std::isnan(sum));
      else
        ASSERT_EQ(sum,
                  static_cast<double>(static_cast<float>(expected)) * static_cast<float>(expected));
    }
}

TEST(Optimizer, ClipsAndUnscales) {
  EXPECT_DOUBLE_EQ(gradient_factor(4, 1, 0), 1);
  EXPECT_DOUBLE_EQ(gradient_factor(4, 1, 5), 1);
  EXPECT_NEAR(gradient_factor(100, 1, 5), 0.5, 1e-6);
  EXPECT_NEAR(gradient_factor(100 * 64.0 * 64.0, 64, 5), 0.5 / 64, 1e-7);
}

TEST(Optimizer, DecidesFromTheNorm) {
  const OptimizerStep first{.lr = 1, .step = 1}, second{.lr = 1, .step = 2};
  const OptimizerStep third{.lr = 1, .step = 3}, restarted{.lr = 1, .step = 3, .restart = 2};
  const float four = 4, scale = 2, nan = std::nanf("");
  SkipCount skips;
  StepScalars scalars;
  double square_norm = 0;
  const auto expect_scalars = [&](const OptimizerStep& step, std::int64_t updates, double factor) {
    const StepScalars expected = scalars_of(step, updates, factor);
    EXPECT_EQ(scalars.grad_scale, expected.grad_scale);
    EXPECT_EQ(scalars.step_size, expected.step_size);
    EXPECT_EQ(scalars.root_correction, expected.root_correction);
    EXPECT_FALSE(scalars.skip);
  };
  decide(first, {.squares = &four, .loss_scale = &scale}, 0.5, skips, scalars, &square_norm);
  expect_scalars(first, 1, gradient_factor(4, 2, 0.5));
  EXPECT_EQ(square_norm, 1);
  for (int update = 0; update < 2; ++update) {  // two updates of one step count one skip
    decide(second, {.squares = &nan, .loss_scale = &scale}, 0.5, skips, scalars, &square_norm);
    EXPECT_TRUE(scalars.skip);
    EXPECT_EQ(skips.skipped, 1);
  }
  decide(third, {.loss_scale = &scale}, 0.5, skips, scalars, nullptr);
  expect_scalars(third, 2, 0.5);  // the second update
  decide(restarted, {}, 0, skips, scalars, nullptr);
  expect_scalars(restarted, 1, 1);  // the first one since the optimizer began anew
}

TEST(Optimizer, SkipsAStep) {
  at::Tensor master = random_tensor(1), m = random_tensor(2), v = random_tensor(3).abs();
  const at::Tensor grad = random_tensor(4).to(at::kHalf), weights = master.clone();
  const at::Tensor m2 = m.clone(), v2 = v.clone();
  for (const auto& [type, tensor_type] :
       {std::pair(program::DType::f16, at::kHalf), std::pair(program::DType::f32, at::kFloat)})
    for (const bool fresh : {false, true}) {
      const at::Tensor param = at::zeros({elements}, tensor_type);
      runtime::update({.lr = 0.1},
                      {.param = param.data_ptr(),
                       .grad = grad.data_ptr(),
                       .moment1 = m.data_ptr<float>(),
                       .moment2 = v.data_ptr<float>(),
                       .master = master.data_ptr<float>(),
                       .param_type = type,
                       .grad_type = program::DType::f16,
                       .elements = elements,
                       .fresh = fresh},
                      true, {.skip = true});
      EXPECT_TRUE(at::equal(param, fresh ? weights.to(tensor_type) : at::zeros_like(param)));
    }
  EXPECT_TRUE(at::equal(master, weights) && at::equal(m, m2) && at::equal(v, v2));
}

TEST(Optimizer, MeasuresAllSources) {
  const std::vector<float> a = {1, 2}, b = {3};
  const std::vector<Values> sources = {{a.data(), program::DType::f32, 2},
                                       {b.data(), program::DType::f32, 1}};
  float norm = 100;
  measure(sources, 0.5, false, &norm);
  EXPECT_EQ(norm, 7);
  measure(sources, 1, true, &norm);
  EXPECT_EQ(norm, 21);
}

TEST(Optimizer, LossScaleHalvesAndDoubles) {
  float state[2] = {1024, 0};
  const float finite = 1, infinite = std::numeric_limits<float>::infinity();
  rescale(&infinite, state);
  EXPECT_EQ(state[0], 512);
  for (int i = 0; i < 1999; ++i) rescale(&finite, state);
  EXPECT_EQ(state[0], 512);
  rescale(&finite, state);
  EXPECT_EQ(state[0], 1024);
  EXPECT_EQ(state[1], 0);
  for (int i = 0; i < 20; ++i) rescale(&infinite, state);
  EXPECT_EQ(state[0], 1);
}

TEST(Optimizer, LearningRateRisesAndFalls) {
  job::Train train;
  train.steps = 11, train.lr = 1, train.warmup_steps = 4, train.min_lr = 0.2;
  EXPECT_DOUBLE_EQ(learning_rate(train, 0), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(train, 3), 1);
  EXPECT_DOUBLE_EQ(learning_rate(train, 4), 1);
  EXPECT_DOUBLE_EQ(learning_rate(train, 7), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(train, 10), 0.2);
  train.decay = job::Decay::cosine;
  EXPECT_NEAR(learning_rate(train, 7), 0.6, 1e-12);
  EXPECT_GT(learning_rate(train, 5), 0.9);
  train.decay = job::Decay::constant;
  EXPECT_DOUBLE_EQ(learning_rate(train, 10), 1);
}

}  // namespace
}  // namespace rehearse::runtime
