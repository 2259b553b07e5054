// The arithmetic that is not a matrix product: one fused pass over a flat interval for AdamW
// (Loshchilov & Hutter 2019, as torch.optim.AdamW computes it) and SGD with momentum (as
// torch.optim.SGD), sums of squares for clipping, dynamic loss scaling (Micikevicius et al. 2018,
// section 3.2). Plain loops over plain memory, so that the same code serves any slice of any
// storage and can be tested without torch.
#pragma once
#include <cstdint>
#include <utility>

#include "engine/job/job.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/tensors/variance.h"

namespace rehearse::runtime {

/// What one step of the optimizer needs to know beside its tensors.
struct OptimizerStep {
  plan::Optimizer kind = plan::Optimizer::adamw;
  double lr = 0;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // AdamW
  double momentum = 0.9;                         // SGD
  double weight_decay = 0;                       // of the tensors that decay
  std::int64_t step = 1;                         // 1 at the first update: bias correction
  double grad_scale = 1;  // gradients are multiplied by it: clipping, 1 / loss scale
};

/// Learning rate of a step (0-based) of train.steps: rises linearly from lr / warmup_steps to lr,
/// then falls along a line or half a cosine to min_lr at the last step, or stays.
double learning_rate(const job::Train& train, std::int64_t step);
/// The settings of [train] for a step; gradients as they are.
OptimizerStep optimizer_step(const job::Train& train, plan::Optimizer kind, std::int64_t step);

/// A flat interval of equal length in each tensor. `param` and `grad` are f32, bf16 or f16; moments
/// and master are f32. `master` is the copy that is updated when `param` has 16 bits (null: param
/// itself, in fp32 arithmetic). `moment2` is read by AdamW only.
struct OptimizerInterval {
  void* param = nullptr;
  const void* grad = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
  float* master = nullptr;
  program::DType param_type = program::DType::f32, grad_type = program::DType::f32;
  std::int64_t elements = 0;
};

void update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay);

/// Sum of squares of f32, bf16 or f16 values: partial sums in double, in an order that depends on
/// `elements` alone.
double sum_of_squares(const void* values, program::DType type, std::int64_t elements);

/// Factor for gradients of which `sum_of_squares` (of gradients multiplied by `loss_scale`) is the
/// global sum: 1 / loss_scale, and max_norm / norm where the true norm exceeds max_norm > 0
/// (torch.nn.utils.clip_grad_norm_, whose 1e-6 is in the denominator too).
double gradient_factor(double sum_of_squares, double loss_scale, double max_norm);

/// Dynamic loss scaling. `state`: scale, steps since it last changed. Not finite: halved, but not
/// below 1; 2000 good steps in a row: doubled.
inline constexpr float initial_loss_scale = 65536.0F;
void rescale(bool finite, float* state);

/// Welford's update by every `stride`-th of `values` x `scale`, beginning with the first. `state`:
/// number of observations, mean of each observed entry, sum of its squared deviations; 1 + 2 x
/// observed_entries(elements, stride) numbers. At the first value that is not finite it stops for
/// good: the number of observations becomes negative, and what that value left says where it was.
void observe(const void* values, program::DType type, std::int64_t elements, int stride,
             float scale, float* state);

}  // namespace rehearse::runtime
