// Gradient syncs: how a method stores weights and gradients on the data-parallel ranks, and how it
// sums gradients over them. The other half of a method is its pass order (pass_order.h).
#pragma once
#include <vector>

#include "engine/methods/lowering/exchange/buckets.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace rehearse::methods {

class Stage;

/// Stage calls these functions while it lowers. One object serves all stages and keeps no state.
class GradientSync {
 public:
  virtual ~GradientSync() = default;
  /// Whether each segment has buckets of its own (for weights that are gathered segment by
  /// segment). Otherwise buckets are filled up to bucket_bytes.
  virtual bool bucket_per_segment(const plan::Plan&) const { return false; }
  /// Whether groups that tp splits and groups that it does not split go into separate buckets.
  virtual bool bucket_per_kind(const plan::Plan& plan) const {
    return plan.exchange.sharding.zero > 0;
  }
  /// Whether buckets end in padding that makes the parts of all data-parallel ranks equal.
  virtual bool equal_parts(const plan::Plan& plan) const { return plan.exchange.sharding.zero > 0; }
  /// Whether each server has one bucket, of whatever size. method.bucket then has no effect.
  virtual bool bucket_per_server() const { return false; }
  virtual double bucket_bytes(const plan::Plan& plan, const model::ModelSpec&) const {
    return plan.exchange.bucket_bytes();
  }
  /// Whether a bucket also ends when the backward of this segment ends.
  virtual bool closes_after(const plan::Plan&, Id /*segment*/) const { return false; }
  /// Declares a bucket's storages and fills Bucket::views.
  virtual void declare(Stage& stage, Bucket& bucket) const = 0;
  /// Makes a bucket's weights readable for a pass. Does nothing unless weights are sharded.
  virtual void before_use(Stage&, const Bucket&, program::Pass, int /*microbatch*/,
                          int /*shift*/) const {}
  /// The ref by which a pass reads the weights of a parameter group.
  virtual program::Ref param(const Stage& stage, Id group, program::Pass pass,
                             int microbatch) const = 0;
  /// The instance of the gradient that a micro-batch's backward writes.
  virtual int grad_index(int /*microbatch*/) const { return 0; }
  /// The age of the loss scale that a step's backward applies and its update divides by. It equals
  /// the age of the step's weights, which is the same on all stages that have a scale.
  virtual int scale_age(const plan::Plan&) const { return 1; }
  /// Whether each data-parallel rank has weights, and so gradients, of its own.
  virtual bool own_weights() const { return false; }
  /// Whether the workers of servers take steps of their own and wait for no other worker.
  virtual bool workers_run_free() const { return false; }
  /// Versions of a stage's weights (program::Storage::versions), of which passes read the oldest.
  virtual int weight_versions(const plan::Plan&, const model::ModelSpec&, int /*stage*/) const {
    return 1;
  }
  /// [rank]: the leader that exchanges for it in two-level exchanges. Empty: there are none.
  virtual std::vector<Id> leaders(const plan::Plan&, const program::Program&) const { return {}; }
  /// Called after the backward that completes a bucket's gradient of one micro-batch. `last`: it is
  /// the last micro-batch of the step.
  virtual void reduce(Stage& stage, Bucket& bucket, int microbatch, bool last, int shift) const = 0;
  /// Called after the last reduce of a step: norms, updates, and collectives that bring the new
  /// weights to every rank.
  virtual void finish(Stage& stage, int shift) const = 0;
};

/// Weights and gradients are whole on every dp rank; gradients are all-reduced bucket by bucket
/// while backward runs (DDP, Li et al., VLDB 2020).
const GradientSync& replicated();
/// ZeRO (Rajbhandari et al., SC 2020), by the plan's level, 1 to 3.
const GradientSync& sharded(const plan::Plan& plan);
/// `sharded` if plan.exchange.sharding.zero > 0 and dp > 1, else `replicated`.
const GradientSync& gradient_sync(const plan::Plan& plan);
/// Each layer as plan.exchange.sparse.layers says: dense, sparse (packets of chosen entries with
/// error feedback) or two_level (packets between nodes only); optionally with ZeRO 1 or 2. If
/// `layers` is empty: buckets of plan.exchange.bucket bytes, all by plan.exchange.sparse.reduction
/// (none: dense) at plan.exchange.sparse.density.
const GradientSync& sparse(const plan::Plan& plan);
/// Weights and gradients are whole on every dp rank; gradients are summed as codes of a few bits
/// (quantised.h).
const GradientSync& quantised(program::Compressor compressor);
/// The same until the second moments are frozen; then momenta are summed as signs
/// (onebit_adam.cpp).
const GradientSync& onebit_adam();
/// Weights and gradients are whole on every dp rank; matrices are summed as factors of a low rank
/// (low_rank.cpp).
const GradientSync& low_rank();
/// Weights and gradients are whole on every dp rank; buckets are copied into buffers that are
/// all-reduced, as Horovod and TensorFlow's MultiWorkerMirroredStrategy do (fused.cpp).
const GradientSync& horovod();
const GradientSync& multi_worker_mirrored();

}  // namespace rehearse::methods
