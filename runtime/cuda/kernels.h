// The device's kernels: the functions of runtime/kernels/optimizer.h and averaging.h, with the same
// bits, because they make the same additions in the same order (runtime/kernels/elements.h). They
// only queue their work.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/kernels/averaging.h"
#include "runtime/kernels/optimizer.h"

namespace rehearse::runtime {

cudaError_t queue_update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay,
                         const StepScalars* scalars, cudaStream_t stream);

/// Elements whose squares are added up in fp32, in `squares_lanes` sums; larger sums are in double.
inline constexpr std::int64_t squares_block = 4096, squares_lanes = 16;
inline std::int64_t squares_blocks(std::int64_t elements) {
  return (elements + squares_block - 1) / squares_block;
}

/// total = (first ? 0 : total) + the sum of squares of `values`. Working memory: `lane_sums` has
/// `squares_lanes` numbers for each block, `block_sums` has one.
cudaError_t queue_squares(const Values& values, bool first, float* lane_sums, double* block_sums,
                          double* total, cudaStream_t stream);
/// norm = (add ? norm : 0) + scale x total.
cudaError_t queue_norm(const double* total, double scale, bool add, float* norm,
                       cudaStream_t stream);

cudaError_t queue_decide(const Decision& decision, const NormAndScale& gradients, SkipCount* skips,
                         StepScalars* scalars, double* square_norm, cudaStream_t stream);
cudaError_t queue_rescale(const float* squares, float* state, cudaStream_t stream);

/// `too_large`: working memory.
cudaError_t queue_observe(const Values& values, int stride, const NormAndScale& gradients,
                          float* state, std::uint32_t* too_large, cudaStream_t stream);

cudaError_t queue_average(const Average& work, cudaStream_t stream);
/// As blend_momentum (runtime/kernels/low_rank.h).
cudaError_t queue_blend(double beta1, double scale, const float* moment, float* target,
                        std::int64_t elements, cudaStream_t stream);

}  // namespace rehearse::runtime
