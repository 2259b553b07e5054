// The arithmetic of single numbers, which loops over flat memory use (optimizer.cpp). It compiles
// for CUDA as well (`make gpu`), so that kernels of a GPU can give the same bits: each addition,
// multiplication, division and square root is rounded once, without fused multiply-add. pow differs
// between libraries, so powers are products.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define REHEARSE_BOTH __host__ __device__ inline
#else
#define REHEARSE_BOTH inline
#endif

namespace rehearse::runtime {

// Between the 16-bit types and fp32. Rounding is to nearest, ties to even.

REHEARSE_BOTH float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
REHEARSE_BOTH std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? 0x7fc0U : rounded);
}
REHEARSE_BOTH float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000U | (magnitude << 13));
  // Multiplying by 2^112 adjusts the exponent's bias. The product is exact, also for subnormal
  // numbers.
  return std::bit_cast<float>(
      sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112F));
}
REHEARSE_BOTH std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // NaN: made quiet, upper payload bits kept, as F16C does
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x1ffU));
  }
  if (magnitude >= 0x477ff000U) return sign | 0x7c00;  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 in fp32 rounds to the nearest multiple of 2^-24, ties to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U);
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000U) >> 13);
}

/// base^exponent, exponent at least 0, in double.
REHEARSE_BOTH double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) result *= base;
    base *= base;
  }
  return result;
}

/// What a step's gradients say to the kernels that use them. Both numbers stand in the memory of
/// the device. Only kernels read them, because the host that issues an op may be ahead of the
/// device.
struct NormAndScale {
  /// Sum of squares over all gradients, still multiplied by the loss scale. Null: not computed.
  const float* squares = nullptr;
  /// Null: losses are not scaled.
  const float* loss_scale = nullptr;

  /// False: a gradient overflowed, and the step's update is skipped.
  REHEARSE_BOTH bool finite() const { return squares == nullptr || std::isfinite(*squares); }
  REHEARSE_BOTH float scale() const { return loss_scale == nullptr ? 1 : *loss_scale; }
};

/// How many steps skipped their update, in the memory of the device. All updates of a rank that
/// depend on a norm are on one lane, so they share one count.
struct SkipCount {
  std::int64_t skipped = 0;
  std::int64_t last = 0;  // Decision::step of the last one
};

/// What an update computes with, in the memory of the device.
struct StepScalars {
  float grad_scale = 1;       // factor on gradients: clipping, 1 / loss scale
  float step_size = 0;        // AdamW: learning rate / correction of the first moment
  float root_correction = 1;  // AdamW: square root of the correction of the second moment
  bool skip = false;
};

/// What the host knows of a step's updates: settings of OptimizerStep (optimizer.h).
struct Decision {
  double lr = 0, beta1 = 0, beta2 = 0;
  double max_norm = 0;    // as for gradient_factor
  std::int64_t step = 1;  // steps counted from 1
  std::int64_t restart = 0, frozen = 0;
};

/// The factor that unscales and clips gradients. `sum_of_squares` is the global sum over gradients
/// that are still multiplied by `loss_scale`. The factor is 1 / loss_scale, times max_norm / (norm
/// + 1e-6) where max_norm > 0 and that quotient is below 1 (torch.nn.utils.clip_grad_norm_).
REHEARSE_BOTH double gradient_factor(double sum_of_squares, double loss_scale, double max_norm) {
  const double norm = std::sqrt(sum_of_squares) / loss_scale;
  const double clip = max_norm / (norm + 1e-6);
  return (max_norm > 0 && clip < 1 ? clip : 1) / loss_scale;
}

/// AdamW's corrections for an optimizer that has made `updates` updates, this one included.
REHEARSE_BOTH StepScalars scalars_of(const Decision& step, std::int64_t updates,
                                     double grad_scale) {
  StepScalars out;
  out.grad_scale = static_cast<float>(grad_scale);
  out.step_size = static_cast<float>(step.lr / (1 - power(step.beta1, updates)));
  // What was skipped before `frozen` was no update of the second moment either.
  const std::int64_t of_moment2 = step.frozen > 0 ? step.frozen - (step.step - updates) : updates;
  out.root_correction = static_cast<float>(std::sqrt(1 - power(step.beta2, of_moment2)));
  return out;
}

/// Decides from the gradients of a step: whether its update is skipped, and its scalars. Skipped
/// steps do not count as updates, except since a restart. Writes the sum of squares of the unscaled
/// gradients to `square_norm`; null where `gradients` has none.
REHEARSE_BOTH void decide(const Decision& step, const NormAndScale& gradients, SkipCount& skips,
                          StepScalars& scalars, double* square_norm) {
  const double loss_scale = gradients.scale();
  double factor = 1 / loss_scale;
  if (gradients.squares != nullptr) {
    const double squares = *gradients.squares;
    *square_norm = squares / (loss_scale * loss_scale);
    factor = gradient_factor(squares, loss_scale, step.max_norm);
  }
  const std::int64_t updates =
      step.restart > 0 ? (step.step - 1) % step.restart + 1 : step.step - skips.skipped;
  scalars = scalars_of(step, updates, factor);
  scalars.skip = !gradients.finite();
  // All updates of a step read the same norm, so all of them skip.
  if (scalars.skip && skips.last != step.step) skips.last = step.step, ++skips.skipped;
}

/// Dynamic loss scaling. `state`: the loss scale, and the steps since it last changed. A step whose
/// sum of squares is not finite halves the scale, but not below 1. After 2000 finite steps in a row
/// it doubles.
REHEARSE_BOTH void rescale(const float* squares, float* state) {
  constexpr float good_steps = 2000;
  if (!std::isfinite(*squares)) {
    state[0] = state[0] > 2 ? state[0] / 2 : 1;
    state[1] = 0;
  } else if (++state[1] >= good_steps) {
    state[0] *= 2;
    state[1] = 0;
  }
}

/// Factors of one optimizer step, the same for all elements of an interval.
struct StepFactors {
  float keep = 1, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0, eps = 0;  // AdamW
  float lr = 0, momentum = 0, decay = 0;                                         // SGD
};

/// AdamW (Loshchilov & Hutter 2019, as torch.optim.AdamW).
REHEARSE_BOTH void adamw(const StepFactors& f, const StepScalars& s, float grad, float& param,
                         float& moment1, float& moment2) {
  const float g = grad * s.grad_scale;
  const float m = moment1 + (g - moment1) * f.one_minus_beta1;
  const float v = moment2 * f.beta2 + g * g * f.one_minus_beta2;
  moment1 = m;
  moment2 = v;
  param = param * f.keep - s.step_size * (m / (std::sqrt(v) / s.root_correction + f.eps));
}
/// The same with a second moment that stays, and a new first moment in place of the gradient.
REHEARSE_BOTH void frozen_adamw(const StepFactors& f, const StepScalars& s, float momentum,
                                float& param, float& moment1, float moment2) {
  // A sign is never 0, so an entry that has had no gradient would take steps of m / eps.
  const float m = moment1 = moment2 > 0 ? momentum : 0.0F;
  param = param * f.keep - s.step_size * (m / (std::sqrt(moment2) / s.root_correction + f.eps));
}
/// SGD with momentum (as torch.optim.SGD).
REHEARSE_BOTH void sgd(const StepFactors& f, const StepScalars& s, float grad, float& param,
                       float& momentum) {
  const float g = grad * s.grad_scale + f.decay * param;
  const float b = f.momentum * momentum + g;
  momentum = b;
  param -= f.lr * b;
}

// Of kernels that average weights (averaging.h).

/// Zero if the scale is, whatever the source.
REHEARSE_BOTH float drifted(float scale, float anchor, float source) {
  return scale == 0 ? 0 : scale * (anchor - source);
}
/// SGD with Nesterov momentum (as torch.optim.SGD(nesterov=True)).
REHEARSE_BOTH void nesterov(float lr, float momentum, float gradient, float& anchor,
                            float& moment) {
  moment = momentum * moment + gradient;
  anchor -= lr * (gradient + momentum * moment);
}
/// The learning rate of a sum of gradients of which so much counts. 0 of nothing.
REHEARSE_BOTH float rate_of_share(float lr, float share) { return share == 0 ? 0 : lr / share; }

/// Squared deviations of smaller values stay far below fp32's maximum of 3.4e38.
inline constexpr float too_large_to_observe = 1e18F;
/// One more observation of a running mean and sum of squared deviations (Welford), the `count`-th.
REHEARSE_BOTH void welford(float value, float count, float& mean, float& squares) {
  const float before = value - mean;
  mean += before / count;
  squares += before * (value - mean);
}

}  // namespace rehearse::runtime
