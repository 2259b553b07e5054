// The quantised sync sums gradients as codes of a few bits, in two phases (1-bit Adam: Tang et al.,
// ICML 2021, section 4; torchft's allreduce_quantized). Each of n ranks owns a part of the sum:
//
//   rank i: quantise gradient + residual in n parts --all-to-all--> parts i of all ranks
//           sum of the n parts --quantise sum + residual of the sum--> a packet
//           a packet --all-gather--> n packets, from which each rank decodes the whole sum
//
// A rank sends 2 (n - 1) packets of 1 / n of the gradient, so its bytes do not grow with n. All
// ranks decode the same packets, so their weights stay equal. With error feedback, a rank keeps
// what its codes miss (residual, of the whole gradient) and what those of its part of the sum miss
// (sum_residual), and adds both to the values of the next step (Seide et al. 2014; Karimireddy et
// al., ICML 2019). Sums over tensor ranks come first, and groups that tp splits have buckets of
// their own, so that copies get the same codes.
//
// The first phase of a bucket begins when backward has completed it. The second phase begins after
// backward, so that the compute lane never waits for the network before. In bf16, the sum and what
// is added to it are f32.
#pragma once
#include "engine/methods/lowering/exchange/replicated.h"

namespace rehearse::methods {

class Quantised : public Replicated {
 public:
  explicit Quantised(program::Compressor compressor) : compressor_(compressor) {}

  bool bucket_per_kind(const plan::Plan&) const override { return true; }
  bool equal_parts(const plan::Plan&) const override { return true; }
  void declare(Stage& stage, Bucket& bucket) const override;
  void finish(Stage& stage, int shift) const override;

 protected:
  /// The steps in which sums are quantised.
  virtual program::When when(const plan::Plan&) const { return {}; }
  /// Updates a bucket's weights once its sum is decoded.
  virtual void update(Stage& stage, const Bucket& bucket, int shift) const;
  /// The first phase.
  void exchange(Stage& stage, const Bucket& bucket, int shift) const override;

 private:
  program::Kernel kernel(const Stage& stage, const Bucket& bucket, program::KernelKind kind) const;
  /// The second phase, up to the packets of all ranks.
  void sum(Stage& stage, const Bucket& bucket, int shift) const;
  void decode(Stage& stage, const Bucket& bucket, int shift) const;

  program::Compressor compressor_;
};

/// Checks the settings of a compressor whose plan is complete. Throws Refused.
void check_codes(const plan::Plan& plan, program::Compressor compressor);

}  // namespace rehearse::methods
