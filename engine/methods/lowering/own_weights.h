// Weights that each data-parallel rank trains on its own samples, as it alone would. Methods add
// how ranks keep their weights together: strategies/local_sgd.cpp, strategies/gossip.cpp,
// strategies/fedavg.cpp, strategies/byteps_async.cpp.
//
// A rank's gradient is the mean over its own samples (not its share of the mean over the global
// batch), and its optimizer state is its own too. Where weights have 16 bits, what ranks exchange
// is the fp32 copy.
#pragma once
#include <vector>

#include "engine/methods/lowering/exchange/replicated.h"

namespace rehearse::methods {

class OwnWeights : public Replicated {
 public:
  bool own_weights() const override { return true; }
  void reduce(Stage& stage, Bucket& bucket, int microbatch, bool last, int shift) const override;

 protected:
  /// Updates a bucket's weights by the rank's own gradient. `changed`: as in OptimizerOps::update.
  static void update(Stage& stage, const Bucket& bucket, int shift, Id changed = none,
                     program::Update how = {});
  /// A ref to the weights that updates work on: the rank's own.
  static program::Ref weights(Stage& stage, const Bucket& bucket, program::Slot slot,
                              program::Mode mode, int age = 0);
  /// Adds a kernel on the lane "compute".
  static void kernel(Stage& stage, program::Kernel kernel, std::vector<program::Ref> refs,
                     int shift, program::When when = {});
  /// Rounds the fp32 copy, which an op has changed, to weights of 16 bits, if there are any.
  static void round(Stage& stage, const Bucket& bucket, int shift, program::When when);
  /// All-reduces a view of partial sums over dp; `result`: the layout of the sum.
  static void sum(Stage& stage, Id view, program::Layout result, int shift, program::When when);
};

}  // namespace rehearse::methods
