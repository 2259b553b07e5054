// The replicated gradient sync and what its relatives (delayed weights, servers) change of it.
#pragma once
#include "engine/methods/lowering/stage.h"

namespace rehearse::methods {

class Replicated : public GradientSync {
 public:
  void declare(Stage& stage, Bucket& bucket) const override;
  program::Ref param(const Stage& stage, Id group, program::Pass pass,
                     int microbatch) const override;
  void reduce(Stage& stage, Bucket& bucket, int microbatch, bool last, int shift) const override;
  void finish(Stage& stage, int shift) const override;
  int scale_age(const plan::Plan& plan) const override { return weight_age(plan); }

 protected:
  virtual int weight_age(const plan::Plan&) const { return 1; }
  virtual int grad_versions(const plan::Plan&, const model::ModelSpec&) const { return 1; }
  virtual bool owns_optimizer() const { return true; }
  /// Sum a bucket's gradient over dp.
  virtual void exchange(Stage& stage, const Bucket& bucket, int shift) const;
};

}  // namespace rehearse::methods
