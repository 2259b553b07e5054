// The optimizer of a role that holds weights (a stage or a parameter server): its state, and the
// ops that observe gradients, update weights and adapt the loss scale.
#pragma once
#include <cstdint>

#include "engine/methods/lowering/exchange/buckets.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/program/role_builder.h"

namespace rehearse::methods {

class OptimizerOps {
 public:
  /// `scale_age`: as in GradientSync. Role and plan must outlive this object.
  OptimizerOps(program::RoleBuilder& role, const plan::Plan& plan, int scale_age = 1)
      : role_(role), plan_(plan), scale_age_(scale_age) {}

  /// Declares the state of `elements` parameters and fills the bucket's views of it. With
  /// Offload::optimizer it is on the host.
  void declare(Bucket& bucket, std::int64_t elements);
  /// Whether updates need the global norm: for clipping, or to detect an fp16 overflow.
  bool needs_norm() const { return plan_.clip || plan_.precision == program::DType::f16; }
  /// The view of the buffer (1) that holds the sum of squares of all gradients.
  Id norm();
  /// Reads the loss scale that this step's backward applied.
  program::Ref scale() const;

  /// The stride of observe: every stride-th entry of a bucket's gradient is observed.
  int stride(const Bucket& bucket, const model::ModelSpec& model) const;
  /// Adds `grad`, of which this rank has `elements` entries, to the running mean and deviations
  /// (engine/tensors/variance.h). Does nothing unless the plan observes gradients.
  void observe(const Bucket& bucket, program::Ref grad, std::int64_t elements, int stride,
               int shift = 0);
  /// With Offload::optimizer, the host does what follows the sum of the gradients:
  ///
  ///   d2h   the gradient goes to the host (`to_host`)
  ///   cpu   its norm, and the update of the host's copy of the weights
  ///   h2d   the weights go to the device
  ///
  /// Buckets wait for each other only at the norm, if there is one. The first copies run under
  /// backward.
  ///
  /// Copies the summed gradient there and returns the op; none: nothing is offloaded.
  Id to_host(const Bucket& bucket, program::Ref grad, int shift);
  /// The view of the gradient that norm and update read, and the lane of both.
  Id gradient(const Bucket& bucket) const {
    return on_host() ? bucket.views.host_grad : bucket.views.sum;
  }
  const char* lane() const { return on_host() ? "cpu" : "compute"; }
  /// Updates `weight` by `grad`, or by its copy on the host, and copies the weights back.
  /// `age` 1: from the state of the step before; 0: from this step's. `changed`: a view of weights
  /// or fp32 copy that an op of this step has written already; the update reads that.
  void update(const Bucket& bucket, program::Ref weight, program::Ref grad, int shift = 0,
              int age = 1, program::Update how = {}, Id changed = none);
  /// The view of the weights that updates work on: of the fp32 copy, if there is one.
  Id updated(const Bucket& bucket) const {
    return bucket.views.master != none ? bucket.views.master : bucket.views.own_weight;
  }
  /// Adapts the loss scale after the step's updates. Does nothing unless the precision is fp16.
  void rescale(int shift);

 private:
  Id copy(const char* lane, program::Ref from, program::Ref to, int shift);
  bool on_host() const { return plan_.exchange.offload != plan::Offload::none; }

  program::RoleBuilder& role_;
  const plan::Plan& plan_;
  int scale_age_;
  Id scale_ = none;
};

}  // namespace rehearse::methods
