// The optimizer of whoever holds weights, a stage's rank or a parameter server: its state, and the
// ops that observe a gradient, update weights by it and rescale the loss.
#pragma once
#include <cstdint>

#include "engine/methods/lowering/buckets.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/program/role_builder.h"

namespace rehearse::methods {

class OptimizerOps {
 public:
  /// `scale_age`: as in GradientSync. All must outlive it.
  OptimizerOps(program::RoleBuilder& role, const plan::Plan& plan, int scale_age = 1)
      : role_(role), plan_(plan), scale_age_(scale_age) {}

  /// State of `elements` parameters; fills the bucket's views of it.
  void declare(Bucket& bucket, std::int64_t elements);
  bool needs_norm() const { return plan_.clip || plan_.precision == program::DType::f16; }
  /// The sum of squares of all gradients, as buffer and view.
  Id norm();
  /// The loss scale that this step's weights go with, to be read.
  program::Ref scale() const;

  /// Every how many-th entry of a bucket's gradient is observed.
  int stride(const Bucket& bucket, const model::ModelSpec& model) const;
  /// Where the plan observes gradients: the running mean and deviations (engine/tensors/variance.h)
  /// of the entries that `grad` has on this rank, `elements` of them.
  void observe(const Bucket& bucket, program::Ref grad, std::int64_t elements, int stride,
               int shift = 0);
  /// `weight` by `grad`. `age` 1: on top of the last step's state; 0: of this step's.
  void update(const Bucket& bucket, program::Ref weight, program::Ref grad, int shift = 0,
              int age = 1);
  /// Dynamic loss scaling, after the step's updates.
  void rescale(int shift);

 private:
  program::RoleBuilder& role_;
  const plan::Plan& plan_;
  int scale_age_;
  Id scale_ = none;
};

}  // namespace rehearse::methods
