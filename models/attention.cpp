// Self-attention: norm, fused query-key-value product (column-parallel: heads are split over tp),
// attention, row-parallel projection, residual. Where the residual starts: see `Normed` in
// layers.h. BERT applies its embedding dropout after its first norm, so layer 0 does it here.
#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "models/layers.h"

namespace rehearse::models {
namespace {

class Attention final : public Normed {
 public:
  explicit Attention(const LocalShape& shape) : Normed(shape) {}

  at::Tensor forward(std::span<const at::Tensor> params, const at::Tensor& input,
                     const Batch& batch, Saved* saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params);
    Norm norm = normed(input, p.norm);
    if (drops_embedding(batch)) drop(norm.y, embedding_mask(batch), {});
    // (n, 3 W) -> (B, T, 3, heads, head_dim).
    const at::Tensor qkv = affine(rows(norm.y), p.qkv_weight.flatten(0, 1), p.qkv_bias.flatten())
                               .view({input.size(0), input.size(1), 3, z_.heads, z_.head_dim});
    const AttentionOutput attended = attend(qkv, !z_.bert);
    at::Tensor out = project(attended.out, p.out_weight, p.out_bias, z_.bert ? norm.y : input,
                             mask(batch), z_.first());
    if (saved != nullptr) {
      saved->tensors = {norm.y, norm.mean, norm.rstd, qkv, attended.out, attended.log_sum};
    }
    return out;
  }

  at::Tensor backward(std::span<const at::Tensor> params, const at::Tensor& input, Saved& saved,
                      const at::Tensor& grad_output, const Batch& batch,
                      std::span<const at::Tensor> grads,
                      std::span<const bool> accumulate) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params), d(z_, grads);
    std::vector<at::Tensor> s = std::exchange(saved.tensors, {});
    at::Tensor &y = s[0], &mean = s[1], &rstd = s[2], &qkv = s[3], &out = s[4], &lse = s[5];

    const at::Tensor grad =
        project_backward(grad_output, d.out_bias, mask(batch), z_.first(), accumulate[1]);
    store_product(d.out_weight, grad, out, accumulate[0]);
    std::array<at::Tensor, 3> grad_qkv =
        attend_backward(product(grad, p.out_weight), qkv, out, lse, !z_.bert);
    qkv.reset(), out.reset(), lse.reset();
    // Query, key and value one after the other: one product for all three would first have to copy
    // their gradients into one matrix.
    at::Tensor grad_y;
    for (std::int64_t i = 0; i < 3; ++i) {
      const at::Tensor g = std::move(grad_qkv[i]);
      store_row_sum(d.qkv_bias[i], g, accumulate[0]);
      store_product(d.qkv_weight[i], g, rows(y), accumulate[0]);
      if (i == 0) {
        grad_y = product(g, p.qkv_weight[i]);
      } else {
        product_into(grad_y, g, p.qkv_weight[i], true);
      }
    }
    y.reset();
    const DropoutMask dropped = embedding_mask(batch);
    return through_norm_and_residual(grad_y, grad_output, input, mean, rstd, p.norm, d.norm,
                                     drops_embedding(batch) ? &dropped : nullptr, accumulate[1]);
  }

 private:
  /// The block's two groups cut into tensors: of parameters, or of gradients in the same order.
  struct Tensors {
    at::Tensor qkv_weight, qkv_bias, out_weight, out_bias;
    NormParams norm;
    Tensors(const LocalShape& z, std::span<const at::Tensor> groups) {
      GroupTensors split(groups[0]), whole(groups[1]);
      qkv_weight = split.next({3, z.width(), z.hidden});
      qkv_bias = split.next({3, z.width()});
      out_weight = split.next({z.hidden, z.width()});
      norm = next_norm(whole, z.hidden);
      out_bias = whole.next({z.hidden});
    }
  };

  DropoutMask mask(const Batch& batch) const {
    return {batch, Site::attention, z_.layer, z_.dropout};
  }
  DropoutMask embedding_mask(const Batch& batch) const {
    return {batch, Site::embedding, -1, z_.dropout};
  }
  bool drops_embedding(const Batch& batch) const {
    return z_.bert && z_.layer == 0 && embedding_mask(batch).active();
  }
};

}  // namespace

std::unique_ptr<Block> make_attention(const LocalShape& shape) {
  return std::make_unique<Attention>(shape);
}

}  // namespace rehearse::models
