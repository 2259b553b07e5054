#include "runtime/kernels/optimizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>
#include <vector>

#include "runtime/kernels/floats.h"
#include "runtime/kernels/vectorised.h"

namespace rehearse::runtime {
namespace {

constexpr std::int64_t block = float_block;

REHEARSE_VECTORISED
void adamw_block(const StepFactors f, const StepScalars s, const float* __restrict grad,
                 float* __restrict param, float* __restrict moment1, float* __restrict moment2,
                 std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) adamw(f, s, grad[i], param[i], moment1[i], moment2[i]);
}

REHEARSE_VECTORISED
void frozen_block(const StepFactors f, const StepScalars s, const float* __restrict momentum,
                  float* __restrict param, float* __restrict moment1,
                  const float* __restrict moment2, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    frozen_adamw(f, s, momentum[i], param[i], moment1[i], moment2[i]);
}

REHEARSE_VECTORISED
void sgd_block(const StepFactors f, const StepScalars s, const float* __restrict grad,
               float* __restrict param, float* __restrict buffer, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sgd(f, s, grad[i], param[i], buffer[i]);
}

REHEARSE_VECTORISED
double squares_block(const float* values, std::int64_t count) {
  constexpr int lanes = 16;
  std::array<float, lanes> sums = {};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += values[i + lane] * values[i + lane];
  double sum = 0;
  for (; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  for (const float s : sums) sum += s;
  return sum;
}

REHEARSE_VECTORISED
void welford_block(const float* __restrict values, float count, float* __restrict mean,
                   float* __restrict squares, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) welford(values[i], count, mean[i], squares[i]);
}

}  // namespace

double learning_rate(const job::Train& train, std::int64_t step) {
  if (step < train.warmup_steps)
    return train.lr * static_cast<double>(step + 1) / static_cast<double>(train.warmup_steps);
  const std::int64_t falling = train.steps - 1 - train.warmup_steps;
  if (train.decay == job::Decay::constant || falling <= 0) return train.lr;
  const double done =
      std::min(1.0, static_cast<double>(step - train.warmup_steps) / static_cast<double>(falling));
  const double left =
      train.decay == job::Decay::linear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return train.min_lr + (train.lr - train.min_lr) * left;
}

OptimizerStep optimizer_step(const job::Train& train, plan::Optimizer kind, std::int64_t step) {
  return {.kind = kind,
          .lr = learning_rate(train, step),
          .beta1 = train.beta1,
          .beta2 = train.beta2,
          .eps = train.eps,
          .momentum = train.momentum,
          .weight_decay = train.weight_decay,
          .step = step + 1};
}

namespace {

/// Weights [begin, begin + count) from their fp32 copy.
void fill_from(const float* values, const OptimizerInterval& interval, std::int64_t begin,
               std::int64_t count) {
  if (interval.param_type == program::DType::f32)
    std::copy_n(values, count, static_cast<float*>(interval.param) + begin);
  else
    store_f32(values, count, interval.param, interval.param_type, begin);
}

using Scratch = std::array<float, block>;

/// A block of a tensor that an update changes, as fp32: the tensor's own memory, or a copy, which
/// `store` rounds back. Null stays null.
class Changed {
 public:
  Changed(void* tensor, program::DType type, std::int64_t begin, std::int64_t count,
          Scratch& scratch)
      : tensor_(tensor), type_(type), begin_(begin), count_(count) {
    if (tensor == nullptr) return;
    if (type == program::DType::f32)
      values = static_cast<float*>(tensor) + begin;
    else
      as_f32(tensor, type, begin, count, values = scratch.data());
  }
  void store() const {
    if (tensor_ != nullptr && type_ != program::DType::f32)
      store_f32(values, count_, tensor_, type_, begin_);
  }

  float* values = nullptr;

 private:
  void* tensor_;
  program::DType type_;
  std::int64_t begin_, count_;
};

}  // namespace

StepFactors factors_of(const OptimizerStep& step, bool decay) {
  const double weight_decay = decay ? step.weight_decay : 0;
  return {
      .keep = static_cast<float>(1 - step.lr * weight_decay),
      .one_minus_beta1 = static_cast<float>(1 - step.beta1),
      .beta2 = static_cast<float>(step.beta2),
      .one_minus_beta2 = static_cast<float>(1 - step.beta2),
      .eps = static_cast<float>(step.eps),
      .lr = static_cast<float>(step.lr),
      .momentum = static_cast<float>(step.momentum),
      .decay = static_cast<float>(weight_decay),
  };
}

void update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay,
            const StepScalars& scalars) {
  if (scalars.skip) {
    if (interval.fresh) fill_from(interval.master, interval, 0, interval.elements);
    return;
  }
  const StepFactors factors = factors_of(step, decay);
  const bool copied = interval.master != nullptr;
  Scratch grad_scratch, weight_scratch, moment1_scratch, moment2_scratch;
  for (std::int64_t begin = 0; begin < interval.elements; begin += block) {
    const std::int64_t count = std::min(block, interval.elements - begin);
    const float* grad =
        as_f32(interval.grad, interval.grad_type, begin, count, grad_scratch.data());
    const Changed weight(copied ? interval.master : interval.param,
                         copied ? program::DType::f32 : interval.param_type, begin, count,
                         weight_scratch);
    const Changed moment1(interval.moment1, interval.moment_type, begin, count, moment1_scratch);
    const Changed moment2(interval.moment2, interval.moment_type, begin, count, moment2_scratch);
    if (step.frozen > 0)
      frozen_block(factors, scalars, grad, weight.values, moment1.values, moment2.values, count);
    else if (step.kind == plan::Optimizer::adamw)
      adamw_block(factors, scalars, grad, weight.values, moment1.values, moment2.values, count);
    else
      sgd_block(factors, scalars, grad, weight.values, moment1.values, count);
    weight.store(), moment1.store(), moment2.store();
    if (copied) fill_from(weight.values, interval, begin, count);
  }
}

double sum_of_squares(const void* values, program::DType type, std::int64_t elements) {
  std::array<float, block> scratch;
  double sum = 0;
  for (std::int64_t begin = 0; begin < elements; begin += block) {
    const std::int64_t count = std::min(block, elements - begin);
    sum += squares_block(as_f32(values, type, begin, count, scratch.data()), count);
  }
  return sum;
}

void measure(std::span<const Values> sources, double scale, bool add, float* norm) {
  double sum = 0;
  for (const Values& v : sources) sum += sum_of_squares(v.data, v.type, v.elements);
  *norm = static_cast<float>((add ? *norm : 0) + scale * sum);
}

void observe(const void* values, program::DType type, std::int64_t elements, int stride,
             const NormAndScale& gradients, float* state) {
  if (state[0] < 0 || !gradients.finite()) return;
  const float scale = 1 / gradients.scale();
  const std::int64_t observed = program::observed_entries(elements, stride);
  float* mean = state + 1;
  float* squares = mean + observed;
  const float count = ++state[0];
  bool finite = true;
  std::array<float, 256> block = {};
  for (std::int64_t begin = 0; begin < observed; begin += std::ssize(block)) {
    const std::int64_t n = std::min(observed - begin, std::ssize(block));
    for (std::int64_t i = 0; i < n; ++i) {
      float one = 0;
      block[i] = scale * *as_f32(values, type, (begin + i) * stride, 1, &one);
      finite &= std::abs(block[i]) < too_large_to_observe;
    }
    welford_block(block.data(), count, mean + begin, squares + begin, n);
  }
  if (!finite) state[0] = -count;
}

}  // namespace rehearse::runtime
