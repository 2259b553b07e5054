// Runs all tensor-parallel ranks of one model in one process, one after the other; all-reduces
// become additions. The arithmetic of a training step without the runtime.
#pragma once
#include <memory>
#include <vector>

#include "models/block.h"
#include "tests/models/reference.h"

namespace rehearse::models {

/// A rule of tensor parallelism that a test breaks on purpose.
enum class Break : std::uint8_t {
  nothing,
  residual_everywhere,  // attention and mlp of every rank run as tensor rank 0
  no_input_sum,         // no all-reduce in backward
  no_stats_gather,      // the loss uses the statistics of its own vocabulary shard only
  head_overwrites,      // no gradient is added to one written before: neither the tied table's two,
                        // nor those of micro-batches
};

class Ranks {
 public:
  Ranks(const model::ModelSpec& model, int tp, program::DType dtype, std::uint64_t seed,
        Break broken = Break::nothing);

  /// Forward and backward of one micro-batch; returns the loss sum. Gradients add up over calls.
  double step(const Batch& batch);
  /// From now on each backward but the embedding's is computed in two halves: all first ones, all
  /// second ones, then the embedding's.
  void split_backward() { halves_ = true; }
  /// Forward alone, keeping nothing; returns the loss sum.
  double evaluate(const Batch& batch);
  /// Full tensors by name, concatenated from their shards.
  reference::Weights weights() const { return gathered(params_); }
  /// Full gradients by name: shards concatenated, partial sums over tp added.
  reference::Weights gradients() const;
  /// Saved::bytes() of each segment on tensor rank `rank` in the last step.
  const std::vector<std::int64_t>& saved_bytes(int rank) const { return saved_bytes_[rank]; }
  /// Boundary activations (B, T, H) of the last step, summed over tp, by segment.
  const std::vector<at::Tensor>& outputs() const { return outputs_; }

 private:
  using Flat = std::vector<std::vector<at::Tensor>>;  // [rank][group]
  std::vector<at::Tensor> of(const Flat& flat, int rank, Id segment) const;
  reference::Weights gathered(const Flat& flat) const;

  model::ModelSpec model_;
  int tp_;
  Break broken_;
  bool halves_ = false;
  Flat params_, grads_;
  std::vector<bool> written_;  // by group: its gradient has been written
  std::vector<std::vector<std::unique_ptr<Block>>> blocks_;
  std::vector<std::vector<std::int64_t>> saved_bytes_;
  std::vector<at::Tensor> outputs_;
};

at::ScalarType scalar_type(program::DType dtype);
/// ||a - b|| / ||b||; ||a - b|| where b is zero.
double difference(const at::Tensor& a, const at::Tensor& b);
/// The tensor with the largest difference. The true gradient of a key bias is 0, so its rounding
/// error is divided by the norm of the query bias's gradient instead of its own.
struct Worst {
  std::string name = {};
  double difference = 0;
};
Worst worst(const reference::Weights& a, const reference::Weights& b);

/// A small model. Its sizes are all different, and the split ones are divisible by 4 (the
/// vocabulary after padding).
model::ModelSpec small(model::Family family, bool tied = true, double dropout = 0);
/// The model with what Gemma 2 has: GeGLU, 1 + weight in norms, a scaled embedding, a window in the
/// first layer, caps so low that they bend scores and logits; norms of outputs if `output_norm`.
model::ModelSpec gemma_of(model::ModelSpec model, bool output_norm = true);
/// Random tokens and labels. The fraction `counted` of the labels counts, the others are -100.
Batch random_batch(const model::ModelSpec& model, int samples, double counted, std::uint64_t seed);

}  // namespace rehearse::models
