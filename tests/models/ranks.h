// All tensor-parallel ranks of one model in one process: the all-reduces become additions. What a
// runtime does with a program, reduced to its arithmetic.
#pragma once
#include <memory>
#include <vector>

#include "models/block.h"
#include "tests/models/reference.h"

namespace rehearse::models {

/// Of the rules of the program, one that a test breaks on purpose.
enum class Break : std::uint8_t {
  nothing,
  residual_everywhere,  // every rank believes that it is tensor rank 0
  no_input_sum,         // the all-reduce of backward is left out
  no_stats_gather,      // the loss sees its own vocabulary shard only
  head_overwrites,      // the tied table's two gradients are not added
};

class Ranks {
 public:
  Ranks(const model::ModelSpec& model, int tp, program::DType dtype, std::uint64_t seed,
        Break broken = Break::nothing);

  /// Forward and backward of one micro-batch; returns the loss sum. Gradients add up over calls.
  double step(const Batch& batch);
  double evaluate(const Batch& batch);
  /// Full tensors by name, put together from shards.
  reference::Weights weights() const { return gathered(params_); }
  /// Full gradients: shards side by side, partial sums added.
  reference::Weights gradients() const;
  /// Saved::bytes() of each segment on tensor rank `rank` in the last step.
  const std::vector<std::int64_t>& saved_bytes(int rank) const { return saved_bytes_[rank]; }
  /// Boundary activations of the last step, summed over tp: [segment].
  const std::vector<at::Tensor>& outputs() const { return outputs_; }

 private:
  using Flat = std::vector<std::vector<at::Tensor>>;  // [rank][group]
  std::vector<at::Tensor> of(const Flat& flat, int rank, Id segment) const;
  reference::Weights gathered(const Flat& flat) const;

  model::ModelSpec model_;
  int tp_;
  Break broken_;
  Flat params_, grads_;
  std::vector<bool> written_;  // by group
  std::vector<std::vector<std::unique_ptr<Block>>> blocks_;
  std::vector<std::vector<std::int64_t>> saved_bytes_;
  std::vector<at::Tensor> outputs_;
};

at::ScalarType scalar_type(program::DType dtype);
/// ||a - b|| / ||b||; ||a - b|| where b is zero.
double difference(const at::Tensor& a, const at::Tensor& b);
/// The largest difference of all tensors, and its name. Key biases have no true gradient: their
/// noise is measured by the query biases' gradient.
struct Worst {
  std::string name = {};
  double difference = 0;
};
Worst worst(const reference::Weights& a, const reference::Weights& b);

/// A small model whose sizes are all different and divide by 4 (vocabulary padded).
model::ModelSpec small(model::Family family, bool tied = true, double dropout = 0);
/// Random tokens and labels; a masked fraction of labels is -100.
Batch random_batch(const model::ModelSpec& model, int samples, double counted, std::uint64_t seed);

}  // namespace rehearse::models
