// The arithmetic of a step outside the model: optimizers, sums of squares for gradient clipping,
// dynamic loss scaling (Micikevicius et al. 2018, section 3.2) and running variances. The formulas
// of single elements are in elements.h.
// Every function is one pass over flat plain memory, so it serves any slice of any storage and can
// be tested without torch.
#pragma once
#include <cstdint>
#include <span>

#include "engine/job/job.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/tensors/variance.h"
#include "runtime/kernels/elements.h"

namespace rehearse::runtime {

/// Settings of one optimizer step.
struct OptimizerStep {
  plan::Optimizer kind = plan::Optimizer::adamw;
  double lr = 0;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // AdamW
  double momentum = 0.9;                         // SGD
  double weight_decay = 0;                       // where update's `decay` is true
  std::int64_t step = 1;                         // steps counted from 1
  std::int64_t restart = 0;                      // above 0: the optimizer is new each so many steps
  /// Above 0, `grad` is AdamW's new first moment, and the second moment stays that of update
  /// `frozen` (1-bit Adam: Tang et al., ICML 2021). Where that is 0, so is the first one.
  std::int64_t frozen = 0;
};

/// Learning rate of step `step` (from 0). It rises linearly from lr / warmup_steps to lr, then
/// falls along a line or half a cosine to min_lr at the last of train.steps, or stays at lr.
double learning_rate(const job::Train& train, std::int64_t step);
/// The settings of [train] for step `step` (from 0).
OptimizerStep optimizer_step(const job::Train& train, plan::Optimizer kind, std::int64_t step);

/// Flat intervals of `elements` elements in each tensor of one optimizer step. `param` and `grad`
/// are f32, bf16 or f16, moments f32 or bf16. `master` is the fp32 copy that is updated when
/// `param` has 16 bits; null: `param` itself is updated. Arithmetic is in fp32; what has 16 bits is
/// rounded when it is stored, as by torch's fused optimizers. `moment1` is SGD's momentum buffer
/// too; only AdamW reads `moment2`.
struct OptimizerInterval {
  void* param = nullptr;
  const void* grad = nullptr;
  void* moment1 = nullptr;
  void* moment2 = nullptr;
  float* master = nullptr;
  program::DType param_type = program::DType::f32, grad_type = program::DType::f32;
  program::DType moment_type = program::DType::f32;
  std::int64_t elements = 0;
  bool fresh = false;  // `param` holds no weights yet: a skipped step fills it from `master`
};

/// Copies the count to where the host will read it.
inline void copy_skips(const SkipCount& from, SkipCount& to) { to = from; }

/// As the functions of elements.h, which a GPU's kernels call too.
inline Decision decision_of(const OptimizerStep& step, double max_norm = 0) {
  return {.lr = step.lr,
          .beta1 = step.beta1,
          .beta2 = step.beta2,
          .max_norm = max_norm,
          .step = step.step,
          .restart = step.restart,
          .frozen = step.frozen};
}
inline StepScalars scalars_of(const OptimizerStep& step, std::int64_t updates,
                              double grad_scale = 1) {
  return scalars_of(decision_of(step), updates, grad_scale);
}
inline void decide(const OptimizerStep& step, const NormAndScale& gradients, double max_norm,
                   SkipCount& skips, StepScalars& scalars, double* square_norm) {
  decide(decision_of(step, max_norm), gradients, skips, scalars, square_norm);
}

/// What an interval's elements are updated with.
StepFactors factors_of(const OptimizerStep& step, bool decay);
/// One optimizer step on an interval. Weight decay applies if `decay` is true.
void update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay,
            const StepScalars& scalars);

/// Sum of squares of f32, bf16 or f16 values. Each block of 4096 elements is summed in 16 fp32
/// lanes, the blocks in double. The order of additions depends on `elements` alone.
double sum_of_squares(const void* values, program::DType type, std::int64_t elements);
struct Values {
  const void* data = nullptr;
  program::DType type = program::DType::f32;
  std::int64_t elements = 0;
};
/// norm = `scale` x the sums of squares of all `sources`, added to what was there if `add`.
void measure(std::span<const Values> sources, double scale, bool add, float* norm);

/// The loss scale at the start of a run.
inline constexpr float initial_loss_scale = 65536.0F;
/// Adds one observation to running variances (Welford): every `stride`-th of `values`, from the
/// first on, divided by the loss scale. A step that is skipped is not observed. `state` has 1 + 2 m
/// numbers, with m = observed_entries(elements, stride): the number of observations, m means, m
/// sums of squared deviations. A value that is not finite, or at least 1e18 in magnitude, ends the
/// observation for good: the number of observations becomes negative, and the means and sums of
/// that step stay for a diagnosis.
void observe(const void* values, program::DType type, std::int64_t elements, int stride,
             const NormAndScale& gradients, float* state);

}  // namespace rehearse::runtime
