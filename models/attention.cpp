// Self-attention: norm, fused query-key-value product (column-parallel: heads are split over tp),
// attention, row-parallel projection, residual. LLaMA rotates queries and keys by their positions
// and may have fewer key-value heads. Where the residual starts: see `WithNorm` in layers.h. BERT
// applies its embedding dropout after its first norm, so layer 0 does it here.
#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "models/attention_block.h"

namespace rehearse::models {
namespace {

class Attention final : public Block, AttentionParts {
 public:
  explicit Attention(const LocalShape& shape) : AttentionParts(shape) {}

  at::Tensor forward(std::span<const at::Tensor> params, const at::Tensor& input,
                     const Batch& batch, Saved* saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params);
    Norm norm = normed(input, p.norm);
    if (drops_embedding(batch)) drop(norm.y, embedding_mask(batch), {});
    const at::Tensor qkv = affine(rows(norm.y), p.qkv_weight, p.qkv_bias);
    release(norm);
    Queries parts = parts_of(qkv, input);
    HeadNorms heads;
    if (z_.qk_norm) {
      heads = head_norms(parts.q, parts.k, p);
      parts.q = heads.q.y, parts.k = heads.k.y;
    }
    turn({parts.q, parts.k}, batch, Turn::forward);
    const AttentionOutput of_heads = attend(parts, reach());
    const at::Tensor out = z_.output_norm
                               ? product(of_heads.out, p.out_weight.t()).view(input.sizes())
                               : project(of_heads.out, p.out_weight, p.out_bias,
                                         z_.bert ? norm.y : input, mask(batch), z_.first());
    if (saved != nullptr) {
      saved->tensors = {kept(norm), norm.mean, norm.rstd, qkv, of_heads.out, of_heads.log_sum};
      if (z_.qk_norm)
        saved->tensors.insert(saved->tensors.end(),
                              {heads.q.y, heads.q.rstd, heads.k.y, heads.k.rstd});
    }
    return z_.output_norm ? through_output_norm(out, input, p.output_norm, saved) : out;
  }

  at::Tensor backward(program::Pass pass, std::span<const at::Tensor> params,
                      const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                      const Batch& batch, std::span<const at::Tensor> grads,
                      std::span<const bool> accumulate) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params), d(z_, grads);
    const Halves half(pass);
    Saved::Tensors s = std::exchange(saved.tensors, {});
    at::Tensor &y = s[0], &mean = s[1], &rstd = s[2], &out = s[4], &lse = s[5];

    const at::Tensor grad =
        z_.output_norm
            ? through_output_norm_backward(half, grad_output, p.output_norm, d.output_norm, s,
                                           accumulate[1])
            : project_backward(grad_output, d.out_bias, mask(batch), z_.first(), accumulate[1]);
    if (half.weights) store_product(d.out_weight, grad, out, accumulate[0]);
    // The first half replaces query, key and value by their gradients.
    std::array<at::Tensor, 3> grad_qkv;
    if (half.inputs) {
      {
        Queries parts = parts_of(s[3], input);
        if (z_.qk_norm) parts.q = s[6], parts.k = s[8];
        grad_qkv = attend_backward(product(grad, p.out_weight), parts, out, lse, reach());
      }
      if (z_.qk_norm && half.weights) s[6].reset(), s[8].reset();
      turn({heads_of(grad_qkv[0], input), heads_of(grad_qkv[1], input)}, batch, Turn::back);
      if (z_.qk_norm)
        through_head_norms(
            grad_qkv, {s[3].narrow(1, 0, z_.width()), s[3].narrow(1, z_.width(), z_.kv_width())},
            {s[7], s[9]}, p, d, accumulate[1]);
      s[3].reset();
    } else {
      grad_qkv = {s[3], s[6], s[7]};
    }
    if (half.weights) {
      out.reset(), lse.reset();
      y = restored(y, input, p.norm);
      if (!z_.keeps_norm && drops_embedding(batch)) drop(y, embedding_mask(batch), {});
    }
    const at::Tensor grad_y =
        through_projection(grad_qkv, y, p, d, half, accumulate[0], half.weights);
    if (!half.inputs) return {};
    if (half.weights) {
      y.reset();
    } else {
      saved.tensors = {y, mean, rstd, grad_qkv[0], out, lse, grad_qkv[1], grad_qkv[2]};
      saved.tensors.insert(saved.tensors.end(), s.begin() + 6, s.end());  // held, no longer read
    }
    const DropoutMask dropped = embedding_mask(batch);
    return through_norm_and_residual(grad_y, grad_output, input, mean, rstd, p.norm, d.norm,
                                     drops_embedding(batch) ? &dropped : nullptr, accumulate[1]);
  }

 private:
  Queries parts_of(const at::Tensor& qkv, const at::Tensor& input) const {
    const std::int64_t width = z_.width(), kv = z_.kv_width();
    return {heads_of(qkv.narrow(1, 0, width), input), heads_of(qkv.narrow(1, width, kv), input),
            heads_of(qkv.narrow(1, width + kv, kv), input)};
  }
  Reach reach() const { return AttentionParts::reach(!z_.bert, z_.window); }
};

}  // namespace

std::unique_ptr<Block> make_attention(const LocalShape& shape) {
  return std::make_unique<Attention>(shape);
}

}  // namespace rehearse::models
