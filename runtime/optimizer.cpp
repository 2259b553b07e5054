#include "runtime/optimizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "engine/errors.h"

// One binary for any x86-64 processor that still uses what this one has.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define REHEARSE_VECTORISED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define REHEARSE_VECTORISED
#endif

namespace rehearse {
namespace {

// Conversions between 16-bit types and fp32, a block at a time, so that the loops that do the work
// exist once, in fp32.
constexpr std::int64_t block = 4096;

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000U | (magnitude << 13));
  // The product is exact for normal and subnormal numbers alike.
  return std::bit_cast<float>(
      sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112F));
}
std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | 0x7e00;
  if (magnitude >= 0x477ff000U) return sign | 0x7c00;  // rounds to 65536 or beyond
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 in fp32 rounds to the nearest multiple of 2^-24, ties to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U);
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000U) >> 13);
}

const float* as_f32(const void* values, DType type, std::int64_t begin, std::int64_t count,
                    float* scratch) {
  if (type == DType::f32) return static_cast<const float*>(values) + begin;
  const auto* bits = static_cast<const std::uint16_t*>(values) + begin;
  if (type == DType::bf16)
    std::transform(bits, bits + count, scratch, from_bf16);
  else
    std::transform(bits, bits + count, scratch, from_f16);
  return scratch;
}
void store_f32(const float* from, std::int64_t count, void* values, DType type,
               std::int64_t begin) {
  auto* bits = static_cast<std::uint16_t*>(values) + begin;
  if (type == DType::bf16)
    std::transform(from, from + count, bits, to_bf16);
  else
    std::transform(from, from + count, bits, to_f16);
}

struct AdamFactors {
  float keep, one_minus_beta1, beta2, one_minus_beta2, eps, step_size, root_correction, grad_scale;
};

REHEARSE_VECTORISED
void adamw_block(const AdamFactors f, const float* __restrict grad, float* __restrict param,
                 float* __restrict moment1, float* __restrict moment2, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * f.grad_scale;
    const float m = moment1[i] + (g - moment1[i]) * f.one_minus_beta1;
    const float v = moment2[i] * f.beta2 + g * g * f.one_minus_beta2;
    moment1[i] = m;
    moment2[i] = v;
    param[i] = param[i] * f.keep - f.step_size * (m / (std::sqrt(v) / f.root_correction + f.eps));
  }
}

REHEARSE_VECTORISED
void sgd_block(float lr, float momentum, float decay, float grad_scale,
               const float* __restrict grad, float* __restrict param, float* __restrict buffer,
               std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * grad_scale + decay * param[i];
    const float b = momentum * buffer[i] + g;
    buffer[i] = b;
    param[i] -= lr * b;
  }
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
void add_block(const float* __restrict source, float* __restrict target, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) target[i] += source[i];
}

REHEARSE_VECTORISED
void welford_block(const float* __restrict values, float count, float* __restrict mean,
                   float* __restrict squares, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float before = values[i] - mean[i];
    mean[i] += before / count;
    squares[i] += before * (values[i] - mean[i]);
  }
}

std::uint32_t magnitude_of(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

/// The keep-th largest magnitude's bits, and how many of the entries that equal it belong to the
/// `keep` largest. Radix select: magnitudes order like their bits, 11 bits at a time from the top.
std::pair<std::uint32_t, std::int64_t> threshold_of(const float* values, std::int64_t elements,
                                                    std::int64_t keep) {
  std::uint32_t prefix = 0, mask = 0;
  std::int64_t wanted = keep;
  for (const auto& [shift, bits] : {std::pair{21, 11}, std::pair{10, 11}, std::pair{0, 10}}) {
    std::vector<std::int64_t> histogram(std::size_t{1} << bits);
    const auto low = static_cast<std::uint32_t>(histogram.size() - 1);
    for (std::int64_t i = 0; i < elements; ++i) {
      const std::uint32_t m = magnitude_of(values[i]);
      if ((m & mask) == prefix) ++histogram[(m >> shift) & low];
    }
    std::uint32_t digit = low;
    while (histogram[digit] < wanted) wanted -= histogram[digit--];
    prefix |= digit << shift;
    mask |= low << shift;
  }
  return {prefix, wanted};
}

}  // namespace

double learning_rate(const Train& train, std::int64_t step) {
  if (step < train.warmup_steps)
    return train.lr * static_cast<double>(step + 1) / static_cast<double>(train.warmup_steps);
  const std::int64_t falling = train.steps - 1 - train.warmup_steps;
  if (train.decay == Decay::constant || falling <= 0) return train.lr;
  const double done =
      std::min(1.0, static_cast<double>(step - train.warmup_steps) / static_cast<double>(falling));
  const double left =
      train.decay == Decay::linear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return train.min_lr + (train.lr - train.min_lr) * left;
}

OptimizerStep optimizer_step(const Train& train, Optimizer kind, std::int64_t step) {
  return {.kind = kind,
          .lr = learning_rate(train, step),
          .beta1 = train.beta1,
          .beta2 = train.beta2,
          .eps = train.eps,
          .momentum = train.momentum,
          .weight_decay = train.weight_decay,
          .step = step + 1};
}

void update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay) {
  const double weight_decay = decay ? step.weight_decay : 0;
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  const AdamFactors factors{
      .keep = static_cast<float>(1 - step.lr * weight_decay),
      .one_minus_beta1 = static_cast<float>(1 - step.beta1),
      .beta2 = static_cast<float>(step.beta2),
      .one_minus_beta2 = static_cast<float>(1 - step.beta2),
      .eps = static_cast<float>(step.eps),
      .step_size = static_cast<float>(step.lr / correction1),
      .root_correction = static_cast<float>(std::sqrt(correction2)),
      .grad_scale = static_cast<float>(step.grad_scale),
  };
  const bool in_place = interval.master == nullptr && interval.param_type == DType::f32;
  std::array<float, block> grad_scratch, param_scratch;
  for (std::int64_t begin = 0; begin < interval.elements; begin += block) {
    const std::int64_t count = std::min(block, interval.elements - begin);
    const float* grad =
        as_f32(interval.grad, interval.grad_type, begin, count, grad_scratch.data());
    float* param = nullptr;
    if (interval.master != nullptr)
      param = interval.master + begin;
    else if (in_place)
      param = static_cast<float*>(interval.param) + begin;
    else {
      param = param_scratch.data();
      as_f32(interval.param, interval.param_type, begin, count, param);
    }
    if (step.kind == Optimizer::adamw)
      adamw_block(factors, grad, param, interval.moment1 + begin, interval.moment2 + begin, count);
    else
      sgd_block(static_cast<float>(step.lr), static_cast<float>(step.momentum),
                static_cast<float>(weight_decay), factors.grad_scale, grad, param,
                interval.moment1 + begin, count);
    if (in_place) continue;
    if (interval.param_type == DType::f32)
      std::copy_n(param, count, static_cast<float*>(interval.param) + begin);
    else
      store_f32(param, count, interval.param, interval.param_type, begin);
  }
}

double sum_of_squares(const void* values, DType type, std::int64_t elements) {
  std::array<float, block> scratch;
  double sum = 0;
  for (std::int64_t begin = 0; begin < elements; begin += block) {
    const std::int64_t count = std::min(block, elements - begin);
    sum += squares_block(as_f32(values, type, begin, count, scratch.data()), count);
  }
  return sum;
}

double gradient_factor(double sum_of_squares, double loss_scale, double max_norm) {
  const double norm = std::sqrt(sum_of_squares) / loss_scale;
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  return clip / loss_scale;
}

void rescale(bool finite, float* state) {
  constexpr float good_steps = 2000;
  if (!finite) {
    state[0] = std::max(1.0F, state[0] / 2);
    state[1] = 0;
  } else if (++state[1] >= good_steps) {
    state[0] *= 2;
    state[1] = 0;
  }
}

void select(const float* source, float* residual, std::int64_t elements, std::int64_t keep,
            Packet* packets) {
  add_block(source, residual, elements);
  if (keep == 0) return;
  auto [threshold, ties] = threshold_of(residual, elements, keep);
  for (std::int64_t i = 0; i < elements; ++i) {
    const std::uint32_t magnitude = magnitude_of(residual[i]);
    if (magnitude < threshold || (magnitude == threshold && ties == 0)) continue;
    if (magnitude == threshold) --ties;
    *packets++ = {.value = residual[i], .index = static_cast<std::int32_t>(i)};
    residual[i] = 0;
  }
}

void observe(const void* values, DType type, std::int64_t elements, int stride, float scale,
             float* state) {
  if (state[0] < 0) return;
  constexpr float too_large = 1e18F;  // its square is none that fp32 has
  const std::int64_t observed = observed_entries(elements, stride);
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
      finite &= std::abs(block[i]) < too_large;
    }
    welford_block(block.data(), count, mean + begin, squares + begin, n);
  }
  if (!finite) state[0] = -count;
}

void scatter_add(const Packet* packets, std::int64_t count, float* target, std::int64_t elements) {
  std::fill_n(target, elements, 0.0F);
  for (std::int64_t i = 0; i < count; ++i) {
    const Packet packet = packets[i];
    if (packet.index < 0 || packet.index >= elements)
      throw BackendError("a sparse gradient names element " + std::to_string(packet.index) +
                         " of " + std::to_string(elements) + ": the message is damaged");
    target[packet.index] += packet.value;
  }
}

}  // namespace rehearse
