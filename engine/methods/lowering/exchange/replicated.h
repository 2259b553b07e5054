// The replicated gradient sync: weights and gradients are whole on every data-parallel rank. A
// bucket's gradient is all-reduced as soon as the backward of the last micro-batch has completed
// it, while the rest of backward runs (PyTorch DDP, Li et al., VLDB 2020; Horovod's tensor fusion).
// PipeDream-2BW and parameter servers override parts of it.
#pragma once
#include "engine/methods/lowering/stage/stage.h"

namespace rehearse::methods {

class Replicated : public GradientSync {
 public:
  void declare(Stage& stage, Bucket& bucket) const override;
  program::Ref param(const Stage& stage, Id group, program::Pass pass,
                     int microbatch) const override;
  void reduce(Stage& stage, Bucket& bucket, int microbatch, bool last, int shift) const override;
  void finish(Stage& stage, int shift) const override;

  /// Whether an update needs the gradients of all stages: tied embeddings, a global norm and a loss
  /// scale join them.
  static bool joins_stages(const plan::Plan& plan, const model::ModelSpec& model);

 protected:
  /// Versions of a stage's gradient buffers.
  virtual int grad_versions(const plan::Plan&, const model::ModelSpec&, int /*stage*/) const {
    return 1;
  }
  int versions_on(const Stage& stage) const {
    return weight_versions(stage.plan(), stage.model(), stage.index());
  }
  /// Whether the workers hold the optimizer state (else servers do).
  virtual bool owns_optimizer() const { return true; }
  /// Sums a bucket's gradient over dp.
  virtual void exchange(Stage& stage, const Bucket& bucket, int shift) const;
  /// All-reduces a view of a bucket's gradients over dp, in place.
  static void all_reduce(Stage& stage, Id view, int shift, program::When when = {});
};

}  // namespace rehearse::methods
