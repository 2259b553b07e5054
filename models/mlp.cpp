// Feed-forward block: norm, column-parallel product, GELU (GPT-2: tanh approximation; BERT: exact)
// or SwiGLU (LLaMA), row-parallel product, residual. Where the residual starts: see `Normed` in
// layers.h.
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
    const Norm norm = normed(input, p.norm);
    const at::Tensor inner = affine(rows(norm.y), p.in_weight, p.in_bias);
    const at::Tensor active = z_.llama ? swiglu(inner) : at::gelu(inner, approximation());
    at::Tensor out = project(active, p.out_weight, p.out_bias, z_.bert ? norm.y : input,
                             mask(batch), z_.first());
    if (saved != nullptr) saved->tensors = {norm.y, norm.mean, norm.rstd, inner, active};
    return out;
  }

  at::Tensor backward(std::span<const at::Tensor> params, const at::Tensor& input, Saved& saved,
                      const at::Tensor& grad_output, const Batch& batch,
                      std::span<const at::Tensor> grads,
                      std::span<const bool> accumulate) override {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    const Tensors p(z_, params), d(z_, grads);
    std::vector<at::Tensor> s = std::exchange(saved.tensors, {});
    at::Tensor &y = s[0], &mean = s[1], &rstd = s[2], &inner = s[3], &active = s[4];

    const at::Tensor grad =
        project_backward(grad_output, d.out_bias, mask(batch), z_.first(), accumulate[1]);
    store_product(d.out_weight, grad, active, accumulate[0]);
    active.reset();
    at::Tensor grad_inner = product(grad, p.out_weight);
    if (z_.llama) {
      swiglu_backward(grad_inner, inner);
      grad_inner = inner;
    } else {
      at::gelu_backward_out(grad_inner, grad_inner, inner, approximation());
    }
    inner.reset();
    store_row_sum(d.in_bias, grad_inner, accumulate[0]);
    store_product(d.in_weight, grad_inner, rows(y), accumulate[0]);
    at::Tensor grad_y = product(grad_inner, p.in_weight);
    y.reset();
    return through_norm_and_residual(std::move(grad_y), grad_output, input, mean, rstd, p.norm,
                                     d.norm, nullptr, accumulate[1]);
  }

 private:
  struct Tensors {
    at::Tensor in_weight, in_bias, out_weight, out_bias;
    NormParams norm;
    Tensors(const LocalShape& z, std::span<const at::Tensor> groups) {
      GroupTensors split(groups[0]), whole(groups[1]);
      in_weight = split.next({z.llama ? 2 * z.ffn : z.ffn, z.hidden});  // LLaMA: gate and up
      if (!z.llama) in_bias = split.next({z.ffn});
      out_weight = split.next({z.hidden, z.ffn});
      norm = next_norm(whole, z);
      if (!z.llama) out_bias = whole.next({z.hidden});
    }
  };

  DropoutMask mask(const Batch& batch) const { return {batch, Site::mlp, z_.layer, z_.dropout}; }
  const char* approximation() const { return z_.bert ? "none" : "tanh"; }
};

}  // namespace

std::unique_ptr<Block> make_mlp(const LocalShape& shape) { return std::make_unique<Mlp>(shape); }

}  // namespace rehearse::models
