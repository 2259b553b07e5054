// What the blocks share: parameter slices of flat storage, layer norm, products whose results land
// in gradient storage, attention kernels, dropout. [n, ...] below has n = samples x seq rows.
#pragma once
#include <ATen/ATen.h>

#include <array>
#include <initializer_list>
#include <string>
#include <utility>

#include "models/block.h"

namespace rehearse::models {

/// The shape that the blocks of one model share on one tensor-parallel rank.
struct LocalShape {
  std::int64_t hidden = 0, heads = 0, head_dim = 0, ffn = 0;
  std::int64_t vocab = 0, padded_vocab = 0;  // tokens of the model; rows of this shard
  int layer = -1, tp = 1, tp_rank = 0;
  bool bert = false, tied = true;
  double dropout = 0, epsilon = 1e-5;

  bool first() const { return tp_rank == 0; }
  std::int64_t width() const { return heads * head_dim; }
};

/// Cuts a flat group into its tensors, in the order in which engine/model/model.cpp lists them.
/// Ends where the group does, or the program is wrong.
class GroupTensors {
 public:
  explicit GroupTensors(const at::Tensor& flat) : flat_(flat) {}
  GroupTensors(const GroupTensors&) = delete;
  GroupTensors& operator=(const GroupTensors&) = delete;
  ~GroupTensors() noexcept(false);
  at::Tensor next(std::initializer_list<std::int64_t> shape);

 private:
  const at::Tensor& flat_;
  std::int64_t offset_ = 0;
};

/// A layer norm's parameters, or their gradients; each [hidden].
struct NormParams {
  at::Tensor weight = {}, bias = {};
};
struct Norm {
  at::Tensor y = {}, mean = {}, rstd = {};
};
/// Statistics are f32 whatever the dtype.
Norm norm_forward(const at::Tensor& x, const NormParams& p, double epsilon);
/// Returns the gradient of x; stores those of weight and bias in `d`.
at::Tensor norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean,
                         const at::Tensor& rstd, const NormParams& p, const NormParams& d,
                         bool accumulate);

/// target (+)= a b, for matrices of any strides.
void product_into(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b, bool add);
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
/// x weight^T + bias.
at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// A way to compute target (+)= a b. The two that product_into chooses from (large_products.h):
/// LibTorch's public functions, and oneDNN, which throws where it is not for the processor.
using IntoProduct = void (*)(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                             bool add);
void plain_product_into(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                        bool add);
void one_dnn_product_into(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                          bool add);
/// What speaks against a way, by large products compared with the public functions': that it
/// throws, or is not as exact; empty: nothing.
std::string objection_to(IntoProduct way);

/// target (+)= a^T b, for a [n, i] and b [n, j]: the gradient of a weight.
void store_product(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                   bool accumulate);
/// target (+)= sum of the rows of x: the gradient of a bias.
void store_row_sum(const at::Tensor& target, const at::Tensor& x, bool accumulate);
/// target (+)= x.
void store(const at::Tensor& target, const at::Tensor& x, bool accumulate);
/// target (+)= 0: this rank's part of a partial sum that another rank contributes alone.
void store_nothing(const at::Tensor& target, bool accumulate);

struct AttentionOutput {
  at::Tensor out = {}, log_sum = {};  // [n, width], f32 [samples, heads, seq]
};
/// qkv: [samples, seq, 3, heads, head_dim].
AttentionOutput attend(const at::Tensor& qkv, bool causal);
/// Returns the gradients of query, key and value, each [n, width].
std::array<at::Tensor, 3> attend_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                                          const at::Tensor& out, const at::Tensor& log_sum,
                                          bool causal);

enum class Site : std::uint8_t { embedding, attention, mlp };
/// Where a dropout mask is applied: with the batch, everything that its bits depend on.
struct DropoutMask {
  const Batch& batch;
  Site site = Site::embedding;
  int layer = -1;
  double probability = 0;

  bool active() const { return batch.train && probability > 0; }
};
/// x = mask * x / (1 - p) (+ residual where defined), in place. x: [samples, seq, hidden].
void drop(at::Tensor& x, const DropoutMask& mask, const at::Tensor& residual);
/// The mask itself, 0 or 1 / (1 - p), f32: what `drop` multiplies by, computed with tensor
/// operations alone (devices other than the CPU; tests).
at::Tensor mask_tensor(at::IntArrayRef shape, const DropoutMask& mask, at::Device device);

/// Row-parallel product with bias, dropout and residual: this rank's part of the sum over tp.
/// Shapes: a [n, k], weight [hidden, k], residual [samples, seq, hidden].
at::Tensor project(const at::Tensor& a, const at::Tensor& weight, const at::Tensor& bias,
                   const at::Tensor& residual, const DropoutMask& mask, bool first);
/// The gradient behind `project`'s dropout; stores the bias's.
at::Tensor project_backward(const at::Tensor& grad_output, const at::Tensor& grad_bias,
                            const DropoutMask& mask, bool first, bool accumulate);

/// A vocabulary shard: its place over tp, its first token, how many of its rows are tokens (the
/// rest is padding and takes no part).
struct Shard {
  int index = 0;
  std::int64_t begin = 0, valid = 0;
};
/// logits [n, rows of the shard] -> exp(logit - maximum), in place; padding becomes 0. Returns f32
/// [n, 3]: maximum, sum, the target's logit (0 where it is not in this shard or not counted).
at::Tensor exponentiate(const at::Tensor& logits, const at::Tensor& labels, Shard shard);
/// What `exponentiate` left -> scale * (softmax - one at the target), in place; rows that are not
/// counted become 0. stats: f32 [tp, n, 3].
void to_gradient(const at::Tensor& values, const at::Tensor& stats, const at::Tensor& labels,
                 Shard shard, double scale);
/// The same by tensor operations, about `elements` of the logits at a time (other devices; tests).
at::Tensor exponentiate_by_tensors(const at::Tensor& logits, const at::Tensor& labels, Shard shard,
                                   std::int64_t elements);
void to_gradient_by_tensors(const at::Tensor& values, const at::Tensor& stats,
                            const at::Tensor& labels, Shard shard, double scale,
                            std::int64_t elements);

/// The next two tensors of a group as a norm's.
inline NormParams next_norm(GroupTensors& cut, std::int64_t hidden) {
  at::Tensor weight = cut.next({hidden});
  return {std::move(weight), cut.next({hidden})};
}

/// What blocks behind the embedding share: they begin with a norm of their input.
class Normed : public Block {
 protected:
  explicit Normed(const LocalShape& shape) : z_(shape) {}
  Norm normed(const at::Tensor& input, const NormParams& p) const {
    return norm_forward(input, p, z_.epsilon);
  }
  at::Tensor rows(const at::Tensor& x) const { return x.view({-1, z_.hidden}); }
  /// The gradient of the input of a block with a residual, which is the input in a pre-LN model and
  /// the norm's output in a post-LN one. `grad_y`: of the norm's output without the residual's
  /// part; worked on in place. `behind_norm`: dropout between the norm and all that reads it.
  at::Tensor through_norm_and_residual(at::Tensor grad_y, const at::Tensor& grad_output,
                                       const at::Tensor& input, const at::Tensor& mean,
                                       const at::Tensor& rstd, const NormParams& p,
                                       const NormParams& d, const DropoutMask* behind_norm,
                                       bool accumulate) const;

  LocalShape z_;
};

std::unique_ptr<Block> make_embedding(const LocalShape& shape);
std::unique_ptr<Block> make_attention(const LocalShape& shape);
std::unique_ptr<Block> make_mlp(const LocalShape& shape);
std::unique_ptr<Block> make_head(const LocalShape& shape);

}  // namespace rehearse::models
