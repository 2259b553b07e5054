// Norms, products and their gradients over flat storage.
#include "models/layers.h"

#include <exception>

#include "engine/base/errors.h"

namespace rehearse::models {
namespace {

/// The CPU's layer norm keeps its statistics in the dtype of weight and bias.
at::Tensor norm_parameter(const at::Tensor& p) {
  return p.is_cpu() && p.scalar_type() != at::kFloat ? p.to(at::kFloat) : p;
}

}  // namespace

GroupTensors::~GroupTensors() noexcept(false) {
  if (flat_.defined() && offset_ != flat_.numel() && std::uncaught_exceptions() == 0) {
    throw ProgramError("a flat parameter group has " + std::to_string(flat_.numel()) +
                       " elements where its segment has " + std::to_string(offset_));
  }
}

at::Tensor GroupTensors::next(std::initializer_list<std::int64_t> shape) {
  if (!flat_.defined()) return {};
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  if (offset_ + elements > flat_.numel()) {
    throw ProgramError("a flat parameter group has only " + std::to_string(flat_.numel()) +
                       " elements");
  }
  const at::Tensor tensor =
      flat_.narrow(0, offset_, elements).view(at::IntArrayRef(shape.begin(), shape.size()));
  offset_ += elements;
  return tensor;
}

Norm norm_forward(const at::Tensor& x, const NormParams& p, double epsilon) {
  if (!p.bias.defined()) return rms_forward(x, p, epsilon);
  Norm norm;
  std::tie(norm.y, norm.mean, norm.rstd) = at::native_layer_norm(
      x, {x.size(-1)}, norm_parameter(p.weight), norm_parameter(p.bias), epsilon);
  return norm;
}

at::Tensor norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean,
                         const at::Tensor& rstd, const NormParams& p, const NormParams& d,
                         bool accumulate) {
  if (!p.bias.defined()) return rms_backward(grad, x, rstd, p, d, accumulate);
  const auto [grad_x, dweight, dbias] =
      at::native_layer_norm_backward(grad, x, {x.size(-1)}, mean, rstd, norm_parameter(p.weight),
                                     norm_parameter(p.bias), {true, true, true});
  store(d.weight, dweight, accumulate);
  store(d.bias, dbias, accumulate);
  return grad_x;
}

at::Tensor WithNorm::through_norm_and_residual(at::Tensor grad_y, const at::Tensor& grad_output,
                                               const at::Tensor& input, const at::Tensor& mean,
                                               const at::Tensor& rstd, const NormParams& p,
                                               const NormParams& d, const DropoutMask* behind_norm,
                                               bool accumulate) const {
  grad_y = grad_y.view(input.sizes());
  if (z_.bert && z_.first()) grad_y.add_(grad_output);
  if (behind_norm != nullptr) drop(grad_y, *behind_norm, {});
  at::Tensor grad_input = norm_backward(grad_y, input, mean, rstd, p, d, accumulate);
  if (!z_.bert && z_.first()) grad_input.add_(grad_output);
  return grad_input;
}

at::Tensor WithNorm::through_output_norm(const at::Tensor& added, const at::Tensor& residual,
                                         const NormParams& p, Saved* saved) const {
  Norm norm = norm_forward(added, p, z_.epsilon);
  if (saved != nullptr) saved->tensors.insert(saved->tensors.end(), {added, norm.rstd});
  return norm.y.add_(residual);
}

at::Tensor WithNorm::through_output_norm_backward(const Halves& half, const at::Tensor& grad_output,
                                                  const NormParams& p, const NormParams& d,
                                                  Saved::Tensors& saved, bool accumulate) const {
  at::Tensor& added = saved[saved.size() - 2];
  if (half.inputs) added = norm_backward(grad_output, added, {}, saved.back(), p, d, accumulate);
  return rows(added);
}

void store(const at::Tensor& target, const at::Tensor& x, bool accumulate) {
  if (accumulate) {
    target.add_(x);
  } else {
    target.copy_(x);
  }
}

void store_zero(const at::Tensor& target, bool accumulate) {
  if (target.defined() && !accumulate) target.zero_();
}

void store_product(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                   bool accumulate) {
  if (target.scalar_type() != a.scalar_type()) {
    store(target, product(a.t(), b), accumulate);
  } else {
    product_into(target, a.t(), b, accumulate);
  }
}

void store_row_sum(const at::Tensor& target, const at::Tensor& x, bool accumulate) {
  if (!target.defined()) return;
  if (accumulate || target.scalar_type() != x.scalar_type()) {
    store(target, at::sum(x, {0}, false, target.scalar_type()), accumulate);
  } else {
    at::Tensor out = target;
    at::sum_out(out, x, {0});
  }
}

at::Tensor project(const at::Tensor& a, const at::Tensor& weight, const at::Tensor& bias,
                   const at::Tensor& residual, const DropoutMask& mask, bool first) {
  const std::int64_t hidden = weight.size(0);
  if (mask.active()) {
    at::Tensor out =
        (first ? affine(a, weight, bias) : product(a, weight.t())).view(residual.sizes());
    drop(out, mask, first ? residual : at::Tensor());
    return out;
  }
  if (!first) return product(a, weight.t()).view(residual.sizes());
  at::Tensor out = bias.defined() ? at::add(residual, bias) : residual.clone();
  product_into(out.view({-1, hidden}), a, weight.t(), true);
  return out;
}

at::Tensor project_backward(const at::Tensor& grad_output, const at::Tensor& grad_bias,
                            const DropoutMask& mask, bool first, bool accumulate) {
  const std::int64_t hidden = grad_output.size(-1);
  at::Tensor grad = grad_output;
  if (mask.active()) {
    grad = grad_output.clone();
    drop(grad, mask, {});
  }
  grad = grad.view({-1, hidden});
  if (first) {
    store_row_sum(grad_bias, grad, accumulate);
  } else {
    store_zero(grad_bias, accumulate);
  }
  return grad;
}

}  // namespace rehearse::models
