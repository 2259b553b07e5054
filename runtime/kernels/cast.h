// Copies or adds between flat intervals that may differ in dtype and in row length.
//
//   keep > 0:               source row  [x x x x . .]   stride elements, the first `keep` are taken
//                           target row  [x x x x]
//   keep = 0, stride > 1:   sources     [a a] [b b b]   one run of each source
//                           target row  [a a b b b]     stride elements
//   keep = 0, stride = 1:   one source of the target's length
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace rehearse::runtime {

/// target = source, or target += source with `add`; all tensors are flat. The dtypes may differ.
/// With `keep` > 0 only the first source is read.
void cast(std::span<const at::Tensor> sources, const at::Tensor& target, bool add,
          std::int64_t keep, std::int64_t stride);

}  // namespace rehearse::runtime
