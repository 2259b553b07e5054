// What becomes of weights and gradients over the data-parallel ranks: the half of a method that a
// pipeline schedule leaves open.
#pragma once
#include <vector>

#include "engine/methods/lowering/buckets.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace rehearse::methods {

class Stage;

/// One object serves all stages.
class GradientSync {
 public:
  virtual ~GradientSync() = default;
  /// Weights of one segment a bucket (sharded weights are gathered segment by segment), or packed
  /// up to plan.bucket.
  virtual bool bucket_per_segment(const plan::Plan&) const { return false; }
  /// Groups that tp splits and groups that every tensor rank holds whole in buckets of their own.
  virtual bool bucket_per_kind(const plan::Plan& plan) const { return plan.exchange.zero > 0; }
  virtual double bucket_bytes(const plan::Plan& plan, const model::ModelSpec&) const {
    return plan.exchange.bucket.value;
  }
  /// The storages of a bucket and its views.
  virtual void declare(Stage& stage, Bucket& bucket) const = 0;
  /// Makes the weights of a bucket readable by a pass; a no-op unless they are sharded.
  virtual void before_use(Stage&, const Bucket&, program::Pass, int /*microbatch*/,
                          int /*shift*/) const {}
  /// The weights of a parameter group as a pass reads them.
  virtual program::Ref param(const Stage& stage, Id group, program::Pass pass,
                             int microbatch) const = 0;
  virtual int grad_index(int /*microbatch*/) const { return 0; }
  /// The loss scale that a step's backward applies and its update takes out again: as old as its
  /// weights.
  virtual int scale_age(const plan::Plan&) const { return 1; }
  /// Copies of the weights, of different steps, that a rank keeps.
  virtual int weight_versions(const plan::Plan&) const { return 1; }
  /// By rank, the rank that exchanges for it in some exchange of this sync; empty: each for itself.
  virtual std::vector<Id> leaders(const plan::Plan&, const program::Program&) const { return {}; }
  /// After the backward that completed a bucket's gradient of one micro-batch; `last`: of the step.
  virtual void reduce(Stage& stage, Bucket& bucket, int microbatch, bool last, int shift) const = 0;
  /// After the last reduce of a step: norms, updates, and whatever brings new weights to every
  /// rank.
  virtual void finish(Stage& stage, int shift) const = 0;
};

/// Everything replicated over dp: gradients are all-reduced bucket by bucket under backward (DDP,
/// Li et al. 2020).
const GradientSync& replicated();
/// ZeRO (Rajbhandari et al. 2020) of level 1 to 3.
const GradientSync& sharded(int level);
/// The one of these two that plan.zero asks for; one rank has nothing to shard.
const GradientSync& gradient_sync(const plan::Plan& plan);
/// Each layer as plan.layers says: dense, or packets of chosen entries with error feedback, over
/// all ranks or across nodes; ZeRO 1 and 2 beside it. Without plan.layers, buckets as large as
/// plan.bucket, by plan.reduction (none: dense) at plan.density.
const GradientSync& sparse(const plan::Plan& plan);

}  // namespace rehearse::methods
