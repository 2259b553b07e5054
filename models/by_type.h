// Loops over plain memory: the C++ type of a tensor's elements, and room for a row of them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

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

/// Room for so many floats. It is this thread's own, and its next call returns the same room.
inline float* row_room(std::int64_t elements) {
  thread_local std::vector<float> room;
  if (room.size() < static_cast<std::size_t>(elements))
    room.resize(static_cast<std::size_t>(elements));
  return room.data();
}

}  // namespace rehearse::models
