// Copies between intervals that may differ in dtype and in how rows follow each other.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace rehearse::runtime {

/// target (=|+=) source, flat tensors. `keep` > 0: the target is made of the first `keep` of every
/// `stride` elements of the source. `keep` 0 and `stride` > 1: the target's rows of `stride`
/// elements are put together from one run of each source, in order.
void cast(const std::vector<at::Tensor>& sources, const at::Tensor& target, bool add,
          std::int64_t keep, std::int64_t stride);

}  // namespace rehearse::runtime
