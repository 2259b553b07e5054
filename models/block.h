// A block computes one segment of a model with LibTorch: its forward and its backward, both written
// by hand. There is no autograd graph. So a backward is an op of its own, the bytes kept between
// the two passes are known exactly, and gradients are written directly into the flat storage that
// collectives and the optimizer use.
//
// Shapes below: B samples of a micro-batch, T tokens of a sequence (seq_len), H = hidden, tp ranks
// of the tensor-parallel group. Tensor parallelism is that of engine/model/model.h: every tp rank
// holds a full copy of a block's input and computes a partial sum of its output. Tensor rank 0
// alone adds the residual, the biases of row-parallel products and the positions.
//
// Dropout applies to the outputs of embedding, attention and mlp, not to attention probabilities
// (the fused CPU kernels cannot). There is no padding mask: all sequences have the full length.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/context.h"
#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::models {

/// One micro-batch of one data-parallel rank.
struct Batch {
  at::Tensor tokens = {};         // i64 (B, T)
  at::Tensor labels = {};         // i64 (B, T), the target of each position; -100: not counted
  std::int64_t first_sample = 0;  // number of the first sample within the global batch
  std::int64_t step = 0;
  std::uint64_t seed = 0;
  double loss_weight = 1;  // factor of the loss gradient: 1 / counted tokens of the global batch
  at::Tensor loss_scale = {};  // f32 (1), a further factor, on the device; undefined: 1
  bool train = true;           // false: no dropout
  /// Of each of the T tokens, its place in the whole sample, where ranks divide samples
  /// (engine/model/context.h). Empty: 0, 1, 2 ...
  at::IntArrayRef positions = {};

  std::int64_t position(std::int64_t token) const {
    return positions.empty() ? token : positions[static_cast<std::size_t>(token)];
  }
};

/// What forward keeps for backward. `bytes()` equals `saved_bytes` of engine/model/model.h.
struct Saved {
  using Tensors = c10::SmallVector<at::Tensor, 14>;  // with room for what any block keeps
  Tensors tensors = {};
  std::int64_t bytes() const;
};

/// One segment on one tensor-parallel rank. A block has no state: any thread may call it for any
/// micro-batch. `params` and `grads` hold one flat tensor for each parameter group of the segment,
/// in the segment's order, with this rank's `elements_of(group, tp)` elements.
class Block {
 public:
  virtual ~Block() = default;

  /// `input`: (B, T, H), the same on all tp ranks; undefined for the embedding. Returns (B, T, H),
  /// a partial sum over tp. The head instead returns f32 (B, T, 3), statistics of this rank's
  /// vocabulary shard: the maximum logit, the sum of exp(logit - maximum), and the target's logit
  /// (0 where the target is in another shard or not counted). `saved` null: nothing is kept, as in
  /// evaluation.
  virtual at::Tensor forward(std::span<const at::Tensor> params, const at::Tensor& input,
                             const Batch& batch, Saved* saved) = 0;

  /// `grad_output`: (B, T, H), the gradient of the output summed over tp, the same on all tp ranks;
  /// for the head the statistics of all shards, f32 (tp, B, T, 3) in rank order. Writes `grads[i]`,
  /// or adds to it where `accumulate[i]`. Frees `saved`. Returns the gradient of `input`, (B, T,
  /// H), a partial sum over tp; undefined for the embedding. Gradients of groups that are not split
  /// are partial sums over tp as well.
  ///
  /// `pass`: backward, or for other blocks than the embedding one of its halves. backward_input
  /// leaves in `saved`, in as many bytes, what backward_weight needs. backward_weight gets neither
  /// `input` nor the head's `grad_output` and returns an undefined tensor. A half writes the
  /// gradients of model::gradients_of; the other `grads` are undefined.
  virtual at::Tensor backward(program::Pass pass, std::span<const at::Tensor> params,
                              const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                              const Batch& batch, std::span<const at::Tensor> grads,
                              std::span<const bool> accumulate) = 0;
};

/// Attention over sequences of which this rank has some tokens: the parts of a pass, between which
/// the caller exchanges tensors (program::Part). n = B x T, where T is the tokens of this rank; W
/// and K = heads x head_dim of queries and of keys on this tensor rank. There are two forms:
///
///                   rings                            exchange of heads between P ranks
///   project's       kv (n, 2 K)                      qkv (P, n, (W + 2 K) / P)
///   attend's        nothing: see Saved               output (P, n, W / P)
///   output's, back  d output (n, W)                  d output (P, n, W / P)
///   attend's, back  d query (n, W), d kv (n, 2 K)    d qkv (P, n, (W + 2 K) / P)
///   project's, back d query, then d kv               d qkv (P, n, (W + 2 K) / P)
class PartedAttention {
 public:
  virtual ~PartedAttention() = default;
  /// `input` as in Block::forward; writes `saved`.
  virtual at::Tensor project(std::span<const at::Tensor> params, const at::Tensor& input,
                             const Batch& batch, Saved& saved) = 0;
  /// `source`: what `project` of the block's owner returned, or with an exchange of heads what came
  /// from the P ranks. A ring's first block is the rank's own; results of others are merged with it
  /// by the sums of their softmax (Liu et al. 2023, section 3), in f32.
  virtual at::Tensor attend(const at::Tensor& source, const model::AttendedBlock& block,
                            const Batch& batch, Saved& saved) = 0;
  /// `attention_output`: what came from the P ranks. Returns what Block::forward does.
  virtual at::Tensor output(std::span<const at::Tensor> params, const at::Tensor& input,
                            const at::Tensor& attention_output, const Batch& batch,
                            Saved& saved) = 0;

  virtual at::Tensor output_backward(std::span<const at::Tensor> params,
                                     const at::Tensor& grad_output, const Batch& batch) = 0;
  struct BlockGradient {
    at::Tensor output = {};  // what `attend` returned
    at::Tensor grad = {};    // gradient of attention's output
    at::Tensor query = {};   // of rings: written, or added to if `add`
    bool add = false;
    at::Tensor source = {};  // written
  };
  /// Writes the gradients of a block, flat tensors.
  virtual void attend_backward(const at::Tensor& source, const model::AttendedBlock& block,
                               const Batch& batch, Saved& saved, const BlockGradient& gradient) = 0;
  /// `grad_source`: the gradient of queries, keys and values; may be overwritten. Otherwise as
  /// Block::backward.
  virtual at::Tensor project_backward(std::span<const at::Tensor> params, const at::Tensor& input,
                                      Saved& saved, const at::Tensor& grad_output,
                                      const at::Tensor& attention_output,
                                      const at::Tensor& grad_source, const Batch& batch,
                                      std::span<const at::Tensor> grads,
                                      std::span<const bool> accumulate) = 0;
};

/// `ranks`: that exchange heads for tokens; 0: rings. Throws as make_block does.
std::unique_ptr<PartedAttention> make_parted_attention(const model::ModelSpec& model, Id segment,
                                                       int tp, int tp_rank, program::DType dtype,
                                                       int ranks);

/// `norms`: again: forward does not keep the output of the first norm, and a whole backward
/// computes it from its input; otherwise forward keeps it. Throws InputError for a head with
/// `outputs`, for a dtype other than f32, bf16 and f16, and when tp does not divide the sizes of
/// the segment's groups.
std::unique_ptr<Block> make_block(const model::ModelSpec& model, Id segment, int tp, int tp_rank,
                                  program::DType dtype,
                                  software::Norms norms = software::Norms::kept);

/// Sum of -log p(label) over the counted tokens, f64 of no dimension. `gathered_stats`: f32 (tp, B,
/// T, 3), what `forward` of the head returned on each tp rank.
at::Tensor loss_sum(const at::Tensor& gathered_stats, const Batch& batch);

/// Fills this rank's part of a group with initial weights. Every element is a function of (seed,
/// tensor name, index in the full tensor), so it depends neither on the mesh nor on the number of
/// threads. Padding rows of vocabulary tables are 0.
void initialise(const model::ModelSpec& model, Id group, int tp, int tp_rank, std::uint64_t seed,
                const at::Tensor& flat);

/// View of tensor number `tensor` of a group inside the group's flat storage, with the shape of
/// this rank's shard. For checkpoints and tests.
at::Tensor tensor_view(const model::ModelSpec& model, Id group, std::size_t tensor, int tp,
                       const at::Tensor& flat);

}  // namespace rehearse::models
