// The device's kernels on factors of a low rank: the functions of runtime/kernels/low_rank.h, with
// the same bits. They only queue their work.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/program/low_rank.h"

namespace rehearse::runtime {

cudaError_t queue_project(const program::Factors& size, const float* matrix, const float* right,
                          float* left, cudaStream_t stream);
cudaError_t queue_orthonormalise(const program::Factors& size, float* left, cudaStream_t stream);
cudaError_t queue_project_back(const program::Factors& size, const float* matrix, const float* left,
                               float* right, cudaStream_t stream);
cudaError_t queue_expand(const program::Factors& size, const float* left, const float* right,
                         float scale, float* target, float* residual, cudaStream_t stream);
/// target += source.
cudaError_t queue_add(const float* source, float* target, std::int64_t elements,
                      cudaStream_t stream);

}  // namespace rehearse::runtime
