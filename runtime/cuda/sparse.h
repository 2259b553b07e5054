// The device's kernels of sparse exchanges: the functions `select` of exact top-k and `scatter_add`
// of runtime/kernels/sparsify.h, with the same bits. They only queue their work.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/kernels/sparsify.h"

namespace rehearse::runtime {

/// Bytes of working memory.
std::int64_t select_bytes(const program::Kernel& kernel);
cudaError_t queue_select(const program::Kernel& kernel, const SelectStep& step,
                         const void* gradient, program::DType type, float* residual,
                         std::byte* packet, std::byte* working, cudaStream_t stream);

std::int64_t scatter_bytes(const program::Kernel& kernel);
/// A packet that contradicts itself makes every entry of `target` NaN.
cudaError_t queue_scatter(const program::Kernel& kernel, const SelectStep& step,
                          const std::byte* packets, std::int64_t count, std::int64_t begin,
                          std::int64_t end, float* target, std::byte* working, cudaStream_t stream);

}  // namespace rehearse::runtime
