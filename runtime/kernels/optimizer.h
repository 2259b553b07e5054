// The arithmetic of a step outside the model: AdamW (Loshchilov & Hutter 2019, as
// torch.optim.AdamW), SGD with momentum (as torch.optim.SGD), sums of squares for gradient
// clipping, dynamic loss scaling (Micikevicius et al. 2018, section 3.2) and running variances.
// Every function is one pass over flat plain memory, so it serves any slice of any storage and can
// be tested without torch.
#pragma once
#include <cstdint>
#include <utility>

#include "engine/job/job.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/tensors/variance.h"

namespace rehearse::runtime {

/// Settings of one optimizer step.
struct OptimizerStep {
  plan::Optimizer kind = plan::Optimizer::adamw;
  double lr = 0;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // AdamW
  double momentum = 0.9;                         // SGD
  double weight_decay = 0;                       // where update's `decay` is true
  std::int64_t step = 1;                         // updates counted from 1, for the bias correction
  double grad_scale = 1;                         // factor on gradients: clipping, 1 / loss scale
  /// Above 0, `grad` is AdamW's new first moment, and the second moment stays that of update
  /// `frozen` (1-bit Adam: Tang et al., ICML 2021). Where that is 0, so is the first one.
  std::int64_t frozen = 0;
};

/// Learning rate of step `step` (from 0). It rises linearly from lr / warmup_steps to lr, then
/// falls along a line or half a cosine to min_lr at the last of train.steps, or stays at lr.
double learning_rate(const job::Train& train, std::int64_t step);
/// The settings of [train] for step `step` (from 0). grad_scale is 1.
OptimizerStep optimizer_step(const job::Train& train, plan::Optimizer kind, std::int64_t step);

/// Flat intervals of `elements` elements in each tensor of one optimizer step. `param` and `grad`
/// are f32, bf16 or f16, the others f32. `master` is the fp32 copy that is updated when `param` has
/// 16 bits; null: `param` itself is updated, with fp32 arithmetic. `moment1` is SGD's momentum
/// buffer too; only AdamW reads `moment2`.
struct OptimizerInterval {
  void* param = nullptr;
  const void* grad = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
  float* master = nullptr;
  program::DType param_type = program::DType::f32, grad_type = program::DType::f32;
  std::int64_t elements = 0;
};

/// One optimizer step on an interval. Weight decay applies if `decay` is true.
void update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay);

/// Sum of squares of f32, bf16 or f16 values. Each block of 4096 elements is summed in 16 fp32
/// lanes, the blocks in double. The order of additions depends on `elements` alone.
double sum_of_squares(const void* values, program::DType type, std::int64_t elements);

/// The factor that unscales and clips gradients. `sum_of_squares` is the global sum over gradients
/// that are still multiplied by `loss_scale`. The factor is 1 / loss_scale, times max_norm / (norm
/// + 1e-6) where max_norm > 0 and that quotient is below 1 (torch.nn.utils.clip_grad_norm_).
double gradient_factor(double sum_of_squares, double loss_scale, double max_norm);

/// The loss scale at the start of a run.
inline constexpr float initial_loss_scale = 65536.0F;
/// Dynamic loss scaling. `state`: the loss scale, and the steps since it last changed. A step that
/// is not finite halves the scale, but not below 1. After 2000 finite steps in a row it doubles.
void rescale(bool finite, float* state);

/// Adds one observation to running variances (Welford): every `stride`-th of `values`, times
/// `scale`, from the first on. `state` has 1 + 2 m numbers, with m = observed_entries(elements,
/// stride): the number of observations, m means, m sums of squared deviations. A value that is not
/// finite, or at least 1e18 in magnitude, ends the observation for good: the number of observations
/// becomes negative, and the means and sums of that step stay for a diagnosis.
void observe(const void* values, program::DType type, std::int64_t elements, int stride,
             float scale, float* state);

}  // namespace rehearse::runtime
