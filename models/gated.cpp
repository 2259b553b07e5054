// Gated feed-forward layers (Shazeer 2020): f(gate) * up, with f(x) = x / (1 + exp(-x)) (SwiGLU) or
// GELU by tanh (GeGLU). Gate and up are the two halves of a row.
#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>

#include "models/by_type.h"
#include "models/layers.h"

namespace rehearse::models {
namespace {

/// f and its derivative.
struct Value {
  float f = 0, slope = 0;
};
struct Silu {
  Value operator()(float x) const {
    const float sigmoid = 1 / (1 + std::exp(-x));
    return {x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))};
  }
};
/// 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct Gelu {
  Value operator()(float x) const {
    constexpr float root = std::numbers::sqrt2_v<float> * std::numbers::inv_sqrtpi_v<float>;
    constexpr float cubic = 0.044715F;
    const float t = std::tanh(root * (x + cubic * x * x * x));
    return {0.5F * x * (1 + t),
            0.5F * (1 + t) + 0.5F * x * (1 - t * t) * root * (1 + 3 * cubic * x * x)};
  }
};

template <class T, class F>
void backward_rows(const T* grad, T* inner, std::int64_t rows, std::int64_t ffn, F function) {
  at::parallel_for(0, rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      T* const gates = inner + r * 2 * ffn;
      T* const ups = gates + ffn;
      for (std::int64_t j = 0; j < ffn; ++j) {
        const auto g = static_cast<float>(grad[r * ffn + j]);
        const Value value = function(static_cast<float>(gates[j]));
        gates[j] = static_cast<T>(g * static_cast<float>(ups[j]) * value.slope);
        ups[j] = static_cast<T>(g * value.f);
      }
    }
  });
}

}  // namespace

at::Tensor gated(const at::Tensor& inner, Activation activation) {
  const std::int64_t ffn = inner.size(1) / 2;
  const at::Tensor gate = inner.narrow(1, 0, ffn), up = inner.narrow(1, ffn, ffn);
  return (activation == Activation::swiglu ? at::silu(gate) : at::gelu(gate, "tanh")).mul_(up);
}

void gated_backward(const at::Tensor& grad, const at::Tensor& inner, Activation activation) {
  if (!inner.is_cpu()) return gated_backward_by_tensors(grad, inner, activation);
  const std::int64_t rows = inner.size(0), ffn = inner.size(1) / 2;
  by_type(inner, [&]<class T>(T) {
    const T* const from = grad.const_data_ptr<T>();
    if (activation == Activation::swiglu)
      backward_rows(from, inner.data_ptr<T>(), rows, ffn, Silu{});
    else
      backward_rows(from, inner.data_ptr<T>(), rows, ffn, Gelu{});
  });
}

void gated_backward_by_tensors(const at::Tensor& grad, const at::Tensor& inner,
                               Activation activation) {
  const std::int64_t ffn = inner.size(1) / 2;
  const at::Tensor gate = inner.narrow(1, 0, ffn), up = inner.narrow(1, ffn, ffn);
  const bool silu = activation == Activation::swiglu;
  const at::Tensor grad_up = (silu ? at::silu(gate) : at::gelu(gate, "tanh")).mul_(grad);
  const at::Tensor grad_active = grad.mul(up);
  gate.copy_(silu ? at::silu_backward(grad_active, gate)
                  : at::gelu_backward(grad_active, gate, "tanh"));
  up.copy_(grad_up);
}

}  // namespace rehearse::models
