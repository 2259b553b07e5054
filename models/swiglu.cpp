// SwiGLU (Shazeer 2020): silu(gate) * up, with silu(x) = x / (1 + exp(-x)). Gate and up are the two
// halves of a row.
#include <ATen/Parallel.h>

#include <cmath>

#include "models/by_type.h"
#include "models/layers.h"

namespace rehearse::models {
namespace {

template <class T>
void backward_rows(const T* grad, T* inner, std::int64_t rows, std::int64_t ffn) {
  at::parallel_for(0, rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      T* const gates = inner + r * 2 * ffn;
      T* const ups = gates + ffn;
      for (std::int64_t j = 0; j < ffn; ++j) {
        const auto g = static_cast<float>(grad[r * ffn + j]), gate = static_cast<float>(gates[j]);
        const float sigmoid = 1 / (1 + std::exp(-gate));
        gates[j] =
            static_cast<T>(g * static_cast<float>(ups[j]) * sigmoid * (1 + gate * (1 - sigmoid)));
        ups[j] = static_cast<T>(g * gate * sigmoid);
      }
    }
  });
}

}  // namespace

at::Tensor swiglu(const at::Tensor& inner) {
  const std::int64_t ffn = inner.size(1) / 2;
  return at::silu(inner.narrow(1, 0, ffn)).mul_(inner.narrow(1, ffn, ffn));
}

void swiglu_backward(const at::Tensor& grad, const at::Tensor& inner) {
  if (!inner.is_cpu()) return swiglu_backward_by_tensors(grad, inner);
  const std::int64_t rows = inner.size(0), ffn = inner.size(1) / 2;
  by_type(inner, [&]<class T>(T) {
    backward_rows(grad.const_data_ptr<T>(), inner.data_ptr<T>(), rows, ffn);
  });
}

void swiglu_backward_by_tensors(const at::Tensor& grad, const at::Tensor& inner) {
  const std::int64_t ffn = inner.size(1) / 2;
  const at::Tensor gate = inner.narrow(1, 0, ffn), up = inner.narrow(1, ffn, ffn);
  const at::Tensor grad_up = at::silu(gate).mul_(grad);
  gate.copy_(at::silu_backward(grad.mul(up), gate));
  up.copy_(grad_up);
}

}  // namespace rehearse::models
