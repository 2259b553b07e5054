// The segments of a model as LibTorch computes them: forward and backward written by hand, so that
// a backward is an op of its own, what is kept between the two is exact, and gradients land
// straight in the flat storage that collectives and the optimizer use. No autograd graph anywhere.
//
// Tensor parallelism as engine/model/model.h describes it: every block takes its input as a copy
// and returns its part of a sum over tp. Tensor rank 0 alone adds the residual, row-parallel biases
// and positions. Attention probabilities have no dropout (the fused kernels have none on CPU);
// embedding, attention and mlp outputs have. Sequences are whole: there is no padding mask.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::models {

/// One micro-batch of one data-parallel rank.
struct Batch {
  at::Tensor tokens = {};         // i64 [samples, seq]
  at::Tensor labels = {};         // i64 [samples, seq], not shifted any more; -100: not counted
  std::int64_t first_sample = 0;  // of the global batch: dropout does not depend on the mesh
  std::int64_t step = 0;
  std::uint64_t seed = 0;
  double loss_scale = 1;  // multiplies the loss gradient: loss scaling / counted tokens of the
                          // global batch
  bool train = true;      // false: no dropout
};

/// What forward keeps for backward. Its bytes are `saved_bytes` of engine/model/model.h.
struct Saved {
  std::vector<at::Tensor> tensors = {};
  std::int64_t bytes() const;
};

/// One segment on one tensor-parallel rank. Stateless: any thread may call it, for any micro-batch.
/// `params` and `grads` hold one flat tensor per group of the segment, in the segment's order, with
/// this rank's elements (`elements_of(group, tp)`).
class Block {
 public:
  virtual ~Block() = default;

  /// `input`: [samples, seq, hidden], a copy over tp; undefined for the embedding. Returns
  /// [samples, seq, hidden], a partial sum over tp. The head returns f32 [samples, seq, 3] of this
  /// vocabulary shard: maximum logit, sum of exp(logit - maximum), the target's logit (0 where the
  /// target lies in another shard or is not counted). `saved` null: nothing is kept (evaluation).
  virtual at::Tensor forward(std::span<const at::Tensor> params, const at::Tensor& input,
                             const Batch& batch, Saved* saved) = 0;

  /// `grad_output`: gradient of the sum over tp, a copy; for the head the stats of all shards, f32
  /// [tp, samples, seq, 3] in rank order. Writes `grads`, or adds to them where `accumulate`. Frees
  /// `saved`. Returns the gradient of `input`, a partial sum over tp (undefined for the embedding).
  /// Gradients of groups that are not split are partial sums over tp too.
  virtual at::Tensor backward(std::span<const at::Tensor> params, const at::Tensor& input,
                              Saved& saved, const at::Tensor& grad_output, const Batch& batch,
                              std::span<const at::Tensor> grads,
                              std::span<const bool> accumulate) = 0;
};

/// Throws InputError for a family that has no blocks (llama), and where tp does not divide.
std::unique_ptr<Block> make_block(const model::ModelSpec& model, Id segment, int tp, int tp_rank,
                                  program::DType dtype);

/// Sum over counted tokens of -log p(label). `gathered_stats`: f32 [tp, samples, seq, 3].
double loss_sum(const at::Tensor& gathered_stats, const Batch& batch);

/// Fill this rank's part of a group. Every element is a function of (seed, tensor name, index in
/// the full tensor), hence independent of mesh and threads. Padding rows of vocabulary tables are
/// 0.
void initialise(const model::ModelSpec& model, Id group, int tp, int tp_rank, std::uint64_t seed,
                const at::Tensor& flat);

/// A tensor of a group inside its flat storage: `flat` narrowed to `tensor` and shaped as this
/// rank's shard. For checkpoints and tests.
at::Tensor tensor_view(const model::ModelSpec& model, Id group, std::size_t tensor, int tp,
                       const at::Tensor& flat);

}  // namespace rehearse::models
