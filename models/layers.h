// Functions that the blocks share: views of parameters in flat storage, layer norm, matrix products
// that write into gradient storage, attention, dropout and cross-entropy.
//
// Shapes: B samples, T tokens of a sequence, H = hidden, n = B x T rows; heads, head_dim, ffn and V
// (rows of the vocabulary shard) are those of one tensor-parallel rank; W = heads x head_dim.
// "target (+)= x" means: target += x with `accumulate` or `add`, otherwise target = x.
#pragma once
#include <ATen/ATen.h>

#include <array>
#include <initializer_list>
#include <string>
#include <utility>

#include "models/block.h"
#include "models/rotary.h"

namespace rehearse::models {

using model::Activation;

/// Sizes of the blocks of one model on one tensor-parallel rank.
struct LocalShape {
  std::int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  std::int64_t vocab = 0, padded_vocab = 0;  // tokens of the whole model; rows of this shard (V)
  int layer = -1, tp = 1, tp_rank = 0;
  bool bert = false, llama = false, tied = true, qkv_bias = true, qk_norm = false;
  Activation activation = Activation::swiglu;       // LLaMA
  std::int64_t experts = 0, experts_per_token = 1;  // 0: a feed-forward layer for all tokens
  bool norm_topk = true;
  double router_aux_loss = 0;
  bool output_norm = false;
  double norm_offset = 0;                                    // what norms add to their weight
  double embedding_scale = 1;                                // of the embedding's output
  double score_scale = 1, attention_cap = 0, logit_cap = 0;  // 0: no cap
  bool keeps_norm = true;   // forward keeps the output of a block's first norm
  std::int64_t window = 0;  // of attention; 0: none
  Rotary rotary = {};       // of positions (LLaMA)
  double dropout = 0, epsilon = 1e-5;

  bool first() const { return tp_rank == 0; }
  std::int64_t width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
};

/// Cuts a flat parameter group into its tensors, in the order in which engine/model/model.cpp lists
/// them. `next` throws ProgramError when the group has too few elements, the destructor when it has
/// elements left over. Of an undefined group all tensors are undefined.
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

/// Parameters of a norm, or their gradients; each (H). An RMSNorm (LLaMA) has no bias, and
/// multiplies by `offset` + weight.
struct NormParams {
  at::Tensor weight = {}, bias = {};
  double offset = 0;
};
struct Norm {
  at::Tensor y = {}, mean = {}, rstd = {};
};
/// Norm of x, (B, T, H). mean and rstd, one for each row, are f32 whatever the dtype of x; mean has
/// no elements for an RMSNorm.
Norm norm_forward(const at::Tensor& x, const NormParams& p, double epsilon);
/// Returns the gradient of x; stores the gradients of weight and bias in `d`.
at::Tensor norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean,
                         const at::Tensor& rstd, const NormParams& p, const NormParams& d,
                         bool accumulate);

/// The same for an RMSNorm, in loops over rows on the CPU and by tensor operations elsewhere.
Norm rms_forward(const at::Tensor& x, const NormParams& p, double epsilon);
at::Tensor rms_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& rstd,
                        const NormParams& p, const NormParams& d, bool accumulate);
Norm rms_forward_by_tensors(const at::Tensor& x, const NormParams& p, double epsilon);
at::Tensor rms_backward_by_tensors(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& rstd, const NormParams& p, const NormParams& d,
                                   bool accumulate);

/// SwiGLU or GeGLU: f(gate) * up, (n, ffn). inner: (n, 2 ffn), gate and up.
at::Tensor gated(const at::Tensor& inner, Activation activation);
/// Replaces `inner` by its gradient. grad: (n, ffn).
void gated_backward(const at::Tensor& grad, const at::Tensor& inner, Activation activation);
void gated_backward_by_tensors(const at::Tensor& grad, const at::Tensor& inner,
                               Activation activation);

/// target (+)= a b, for matrices of any strides.
void product_into(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b, bool add);
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
/// x weight^T + bias, for x (n, i), weight (j, i) and bias (j), which may be undefined: none.
at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// A function that computes target (+)= a b. product_into chooses between two (large_products.h):
/// LibTorch's public functions, and oneDNN, which may throw on a processor that it does not
/// support.
using IntoProduct = void (*)(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                             bool add);
void plain_product_into(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                        bool add);
void one_dnn_product_into(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                          bool add);
/// Compares large products computed by `way` with those of LibTorch's public functions. Returns
/// what is wrong with `way` (it throws, or is less exact); empty: nothing.
std::string mismatch_with_libtorch(IntoProduct way);

/// target (+)= a^T b, for a (n, i) and b (n, j): the gradient of a weight (i, j).
void store_product(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                   bool accumulate);
/// target (+)= sum of the rows of x: the gradient of a bias. `target` undefined: there is none.
void store_row_sum(const at::Tensor& target, const at::Tensor& x, bool accumulate);
/// target (+)= x.
void store(const at::Tensor& target, const at::Tensor& x, bool accumulate);
/// target (+)= 0: for a gradient that only tensor rank 0 computes, on the other ranks. `target`
/// undefined: there is none.
void store_zero(const at::Tensor& target, bool accumulate);

struct AttentionOutput {
  at::Tensor out = {}, log_sum = {};  // (n, W); log of the softmax sums, f32 (B, heads, T)
};
/// Which tokens a token attends to: all, those before it and itself, or the last `window` of these;
/// and how the product s of its query and a key becomes a score: scale s, or with a cap
/// cap tanh(scale s / cap).
struct Reach {
  bool causal = false;
  std::int64_t window = 0;  // 0: all before it
  double scale = 1, cap = 0;
};
/// Query (B, T, heads, head_dim), key and value (B, T, kv_heads, head_dim). With fewer key-value
/// heads than heads, each serves heads / kv_heads query heads that follow each other.
struct Queries {
  at::Tensor q = {}, k = {}, v = {};
};
/// Scaled dot-product attention.
AttentionOutput attend(const Queries& x, const Reach& reach);
/// Returns the gradients of query, key and value, (n, W) and twice (n, kv_heads x head_dim).
/// grad_out, out: (n, W).
std::array<at::Tensor, 3> attend_backward(const at::Tensor& grad_out, const Queries& x,
                                          const at::Tensor& out, const at::Tensor& log_sum,
                                          const Reach& reach);
/// The same with a cap (capped_attention.cpp).
AttentionOutput attend_capped(const Queries& x, const Reach& reach);
std::array<at::Tensor, 3> attend_capped_backward(const at::Tensor& grad_out, const Queries& x,
                                                 const at::Tensor& out, const at::Tensor& log_sum,
                                                 const Reach& reach);

enum class Site : std::uint8_t { embedding, attention, mlp };
/// Names a dropout mask by all that its bits depend on: seed, step and samples of the batch, the
/// site, the layer and the probability.
struct DropoutMask {
  const Batch& batch;
  Site site = Site::embedding;
  int layer = -1;
  double probability = 0;

  bool active() const { return batch.train && probability > 0; }
};
/// x = mask * x / (1 - p), plus `residual` where it is defined; in place. x: (B, T, H).
void drop(at::Tensor& x, const DropoutMask& mask, const at::Tensor& residual);
/// The f32 factors by which `drop` multiplies, each 0 or 1 / (1 - p), computed with tensor
/// operations alone. For devices other than the CPU, and for tests.
at::Tensor mask_tensor(at::IntArrayRef shape, const DropoutMask& mask, at::Device device);

/// Row-parallel product with dropout: drop(a weight^T), this rank's part of the sum over tp. Where
/// `first` (tensor rank 0), drop(a weight^T + bias) + residual. a: (n, k), weight: (H, k), residual
/// and result: (B, T, H).
at::Tensor project(const at::Tensor& a, const at::Tensor& weight, const at::Tensor& bias,
                   const at::Tensor& residual, const DropoutMask& mask, bool first);
/// Returns the gradient of the product within `project`, (n, H): `grad_output`, (B, T, H), with the
/// dropout mask applied. Stores the gradient of the bias; `grad_bias` undefined: there is none to
/// store.
at::Tensor project_backward(const at::Tensor& grad_output, const at::Tensor& grad_bias,
                            const DropoutMask& mask, bool first, bool accumulate);

/// The rows of the vocabulary table that one tensor-parallel rank holds.
struct Shard {
  int index = 0;                      // tensor rank
  std::int64_t begin = 0, valid = 0;  // first token; how many rows are tokens, the rest is padding
  double cap = 0;                     // of logits: z becomes cap tanh(z / cap); 0: none
};
/// Replaces logits (n, V) by exp(logit - row maximum), in place; padding becomes 0. Returns f32
/// (n, 3): the maximum, the sum of the exponentials, and the target's logit (0 where the target is
/// in another shard or not counted).
at::Tensor exponentiate(const at::Tensor& logits, const at::Tensor& labels, Shard shard);
/// Replaces the `values` (n, V) that `exponentiate` left by the gradient of the logits, in place:
/// weight * scale * (softmax - 1 at the target), with a cap through its tanh; rows that are not
/// counted become 0. stats: f32 (tp, n, 3); loss_scale: f32 (1) on the device, undefined: 1.
void to_gradient(const at::Tensor& values, const at::Tensor& stats, const at::Tensor& labels,
                 Shard shard, double weight, const at::Tensor& loss_scale);
/// The same two functions by tensor operations, about `elements` of the logits at a time. For
/// devices other than the CPU, and for tests.
at::Tensor exponentiate_by_tensors(const at::Tensor& logits, const at::Tensor& labels, Shard shard,
                                   std::int64_t elements);
void to_gradient_by_tensors(const at::Tensor& values, const at::Tensor& stats,
                            const at::Tensor& labels, Shard shard, double weight,
                            const at::Tensor& loss_scale, std::int64_t elements);

/// The next tensors of a group, as parameters of a norm: weight and bias, or LLaMA's weight alone.
inline NormParams next_norm(GroupTensors& cut, const LocalShape& z) {
  at::Tensor weight = cut.next({z.hidden});
  return {std::move(weight), z.llama ? at::Tensor() : cut.next({z.hidden}), z.norm_offset};
}

/// What a pass of backward computes (Block::backward).
struct Halves {
  explicit Halves(program::Pass pass)
      : inputs(pass != program::Pass::backward_weight),
        weights(pass != program::Pass::backward_input) {}
  bool inputs, weights;
};

/// What all blocks but the embedding share: they begin with a norm of their input. A block of a
/// post-LN model therefore begins with the norm that ends the previous block in the papers.
///
///   pre-LN (GPT, LLaMA)                   post-LN (BERT)
///   input -+- norm -- f -- drop -(+)      input -- norm -+- f -- drop -(+)
///          |                      |                      |              |
///          +----- residual -------+                      +-- residual --+
///
/// With an output norm (Gemma 2), f ends with a second norm. It needs the sum of f over tp, so
/// there is no tensor parallelism.
class WithNorm {
 protected:
  explicit WithNorm(const LocalShape& shape) : z_(shape) {}
  Norm normed(const at::Tensor& input, const NormParams& p) const {
    return norm_forward(input, p, z_.epsilon);
  }
  /// What forward keeps of the norm's output, and what backward makes of that.
  at::Tensor kept(const Norm& norm) const {
    return z_.keeps_norm ? norm.y : norm.rstd.new_empty({0});
  }
  at::Tensor restored(const at::Tensor& kept, const at::Tensor& input, const NormParams& p) const {
    return z_.keeps_norm ? kept : normed(input, p).y;
  }
  /// Frees the norm's output after its product, unless it is kept or is the residual.
  void release(Norm& norm) const {
    if (!z_.keeps_norm && !z_.bert) norm.y.reset();
  }
  /// With an output norm: the norm of `added`, (B, T, H), plus the residual. Keeps in `saved` what
  /// its backward needs.
  at::Tensor through_output_norm(const at::Tensor& added, const at::Tensor& residual,
                                 const NormParams& p, Saved* saved) const;
  /// Its backward: the gradient of `added`, (n, H), which the first half leaves in its place,
  /// behind all else in `saved`.
  at::Tensor through_output_norm_backward(const Halves& half, const at::Tensor& grad_output,
                                          const NormParams& p, const NormParams& d,
                                          Saved::Tensors& saved, bool accumulate) const;
  /// (B, T, H) -> (n, H).
  at::Tensor rows(const at::Tensor& x) const { return x.view({-1, z_.hidden}); }
  /// Returns the gradient of the input of a block with a residual. `grad_y`: the gradient of the
  /// norm's output through f alone; overwritten. `behind_norm`: dropout applied to the norm's
  /// output (BERT's embedding dropout); null: none.
  at::Tensor through_norm_and_residual(at::Tensor grad_y, const at::Tensor& grad_output,
                                       const at::Tensor& input, const at::Tensor& mean,
                                       const at::Tensor& rstd, const NormParams& p,
                                       const NormParams& d, const DropoutMask* behind_norm,
                                       bool accumulate) const;

  LocalShape z_;
};
class Normed : public Block, protected WithNorm {
 protected:
  using WithNorm::WithNorm;
};

std::unique_ptr<Block> make_embedding(const LocalShape& shape);
std::unique_ptr<Block> make_attention(const LocalShape& shape);
std::unique_ptr<PartedAttention> make_parted_attention(const LocalShape& shape, int ranks);
std::unique_ptr<Block> make_mlp(const LocalShape& shape);
std::unique_ptr<Block> make_experts(const LocalShape& shape);
std::unique_ptr<Block> make_head(const LocalShape& shape);

}  // namespace rehearse::models
