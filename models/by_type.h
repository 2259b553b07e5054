// Calls a loop over plain memory with the C++ type of a tensor's elements.
#pragma once
#include <ATen/core/Tensor.h>

namespace rehearse::models {

/// f(T()), where T is float, c10::BFloat16 or c10::Half.
template <class F>
void by_type(const at::Tensor& x, const F& f) {
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return f(c10::BFloat16());
    case at::kHalf:
      return f(c10::Half());
    default:
      return f(float());
  }
}

}  // namespace rehearse::models
