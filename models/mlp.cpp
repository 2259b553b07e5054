// Feed-forward block: norm, column-parallel product, GELU (GPT-2: tanh approximation; BERT: exact)
// or SwiGLU or GeGLU (LLaMA), row-parallel product, residual. Where the residual starts: see
// `WithNorm` in layers.h.
#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "models/layers.h"

namespace rehearse::models {
namespace {

class Mlp final : public Normed {
 public:
  explicit Mlp(const LocalShape& shape) : Normed(shape) {}

  at::Tensor forward(std::span<const at::Tensor> params, const at::Tensor& input,
                     const Batch& batch, Saved* saved) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params);
    Norm norm = normed(input, p.norm);
    const at::Tensor inner = affine(rows(norm.y), p.in_weight, p.in_bias);
    release(norm);
    const at::Tensor active =
        z_.llama ? gated(inner, z_.activation) : at::gelu(inner, approximation());
    const at::Tensor out = z_.output_norm
                               ? product(active, p.out_weight.t()).view(input.sizes())
                               : project(active, p.out_weight, p.out_bias, z_.bert ? norm.y : input,
                                         mask(batch), z_.first());
    if (saved != nullptr) saved->tensors = {kept(norm), norm.mean, norm.rstd, inner, active};
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
    // The first half replaces `inner` by its gradient.
    at::Tensor &y = s[0], &mean = s[1], &rstd = s[2], &inner = s[3], &active = s[4];

    const at::Tensor grad =
        z_.output_norm
            ? through_output_norm_backward(half, grad_output, p.output_norm, d.output_norm, s,
                                           accumulate[1])
            : project_backward(grad_output, d.out_bias, mask(batch), z_.first(), accumulate[1]);
    if (half.weights) {
      store_product(d.out_weight, grad, active, accumulate[0]);
      active.reset();
    }
    if (half.inputs) inner = inner_gradient(product(grad, p.out_weight), inner);
    if (half.weights) {
      store_row_sum(d.in_bias, inner, accumulate[0]);
      y = restored(y, input, p.norm);
      store_product(d.in_weight, inner, rows(y), accumulate[0]);
      y.reset();
    }
    if (!half.inputs) return {};
    at::Tensor grad_y = product(inner, p.in_weight);
    if (half.weights)
      inner.reset();
    else
      saved.tensors = s;
    return through_norm_and_residual(std::move(grad_y), grad_output, input, mean, rstd, p.norm,
                                     d.norm, nullptr, accumulate[1]);
  }

 private:
  struct Tensors {
    at::Tensor in_weight, in_bias, out_weight, out_bias;
    NormParams norm, output_norm;
    Tensors(const LocalShape& z, std::span<const at::Tensor> groups) {
      GroupTensors split(groups[0]), whole(groups[1]);
      in_weight = split.next({z.llama ? 2 * z.ffn : z.ffn, z.hidden});  // LLaMA: gate and up
      if (!z.llama) in_bias = split.next({z.ffn});
      out_weight = split.next({z.hidden, z.ffn});
      norm = next_norm(whole, z);
      if (!z.llama) out_bias = whole.next({z.hidden});
      if (z.output_norm) output_norm = next_norm(whole, z);
    }
  };

  /// The gradient of the activation function's input, in the memory of one of the two. grad: of its
  /// output.
  at::Tensor inner_gradient(at::Tensor grad, const at::Tensor& inner) const {
    if (z_.llama) {
      gated_backward(grad, inner, z_.activation);
      return inner;
    }
    at::gelu_backward_out(grad, grad, inner, approximation());
    return grad;
  }
  DropoutMask mask(const Batch& batch) const { return {batch, Site::mlp, z_.layer, z_.dropout}; }
  const char* approximation() const { return z_.bert ? "none" : "tanh"; }
};

}  // namespace

std::unique_ptr<Block> make_mlp(const LocalShape& shape) { return std::make_unique<Mlp>(shape); }

}  // namespace rehearse::models
