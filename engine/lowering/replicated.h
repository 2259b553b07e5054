// The replicated gradient sync and what its relatives (sparse exchange, delayed weights, servers)
// change of it.
#pragma once
#include <string>

#include "engine/lowering/stage.h"

namespace rehearse {

class Replicated : public GradientSync {
 public:
  void declare(Stage& stage, const Bucket& bucket) const override;
  Ref param(const Stage& stage, Id group, Pass pass, int microbatch) const override;
  void reduce(Stage& stage, const Bucket& bucket, int microbatch, bool last,
              int shift) const override;
  void finish(Stage& stage, int shift) const override;
  int scale_age(const Plan& plan) const override { return weight_age(plan); }

 protected:
  virtual int weight_age(const Plan&) const { return 1; }
  virtual int grad_versions(const Plan&, const ModelSpec&) const { return 1; }
  virtual bool owns_optimizer() const { return true; }
  /// Sum a bucket's gradient over dp.
  virtual void exchange(Stage& stage, const Bucket& bucket, int shift) const;
};

/// A view for each group of the bucket, named prefix + group. The last one takes in the padding.
void declare_group_views(Stage& stage, const Bucket& bucket, const std::string& prefix,
                         const std::string& storage);

}  // namespace rehearse
