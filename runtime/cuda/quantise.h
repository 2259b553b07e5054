// The device's kernels of quantised exchanges: the functions of runtime/kernels/quantise.h, with
// the same bits. They only queue their work.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/kernels/quantise.h"

namespace rehearse::runtime {

/// Bytes of working memory.
std::int64_t quantise_bytes(const program::Kernel& kernel, std::int64_t parts);
cudaError_t queue_quantise(const program::Kernel& kernel, RandomKey key, const void* source,
                           program::DType type, std::int64_t begin, std::int64_t parts,
                           float* residual, std::byte* packets, std::byte* working,
                           cudaStream_t stream);
cudaError_t queue_dequantise(const program::Kernel& kernel, const std::byte* packets,
                             std::int64_t count, float* target, cudaStream_t stream);
cudaError_t queue_dequantise_sum(const program::Kernel& kernel, const std::byte* packets,
                                 std::int64_t count, std::int64_t begin, float* target,
                                 cudaStream_t stream);

}  // namespace rehearse::runtime
