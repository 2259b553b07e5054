// The device's kernels: the functions of runtime/kernels/optimizer.h and averaging.h, with the same
// bits, because they make the same additions in the same order (runtime/kernels/elements.h). They
// only queue their work. nvcc does not compile engine/program/program.h, so its types stay outside.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/cuda/numbers.h"
#include "runtime/kernels/elements.h"

namespace rehearse::runtime {

/// As OptimizerInterval, with the settings of the step.
struct CudaInterval {
  StepFactors factors = {};
  const StepScalars* scalars = nullptr;
  void* param = nullptr;
  const void* grad = nullptr;
  void* moment1 = nullptr;
  void* moment2 = nullptr;
  float* master = nullptr;
  CudaNumber param_type = CudaNumber::f32, grad_type = CudaNumber::f32,
             moment_type = CudaNumber::f32;
  bool fresh = false, adamw = true, frozen = false;
};
cudaError_t queue_update(const CudaInterval& interval, std::int64_t elements, cudaStream_t stream);

/// Elements whose squares are added up in fp32, in `squares_lanes` sums; larger sums are in double.
inline constexpr std::int64_t squares_block = 4096, squares_lanes = 16;
inline std::int64_t squares_blocks(std::int64_t elements) {
  return (elements + squares_block - 1) / squares_block;
}

/// total = (first ? 0 : total) + the sum of squares of `values`. Working memory: `lane_sums` has
/// `squares_lanes` numbers for each block, `block_sums` has one.
cudaError_t queue_squares(const void* values, CudaNumber type, std::int64_t elements, bool first,
                          float* lane_sums, double* block_sums, double* total, cudaStream_t stream);
/// norm = (add ? norm : 0) + scale x total.
cudaError_t queue_norm(const double* total, double scale, bool add, float* norm,
                       cudaStream_t stream);

cudaError_t queue_decide(const Decision& decision, const NormAndScale& gradients, SkipCount* skips,
                         StepScalars* scalars, double* square_norm, cudaStream_t stream);
/// As `observe`. `observed`: how many values the stride leaves. `too_large`: working memory.
struct CudaObservation {
  const void* values = nullptr;
  CudaNumber type = CudaNumber::f32;
  std::int64_t stride = 1, observed = 0;
  NormAndScale gradients = {};
  float* state = nullptr;
};
cudaError_t queue_observe(const CudaObservation& observation, std::uint32_t* too_large,
                          cudaStream_t stream);

/// As Average, with one source.
struct CudaAverage {
  float scale = 1, momentum = 0;
  const float* share = nullptr;
  const float* source = nullptr;
  float *anchor = nullptr, *moment = nullptr, *target = nullptr;
};
cudaError_t queue_weigh(const CudaAverage& work, std::int64_t elements, cudaStream_t stream);
cudaError_t queue_drift(const CudaAverage& work, std::int64_t elements, cudaStream_t stream);
cudaError_t queue_outer_step(const CudaAverage& work, std::int64_t elements, cudaStream_t stream);
/// target = scale x (target + source).
cudaError_t queue_mix(const CudaAverage& work, std::int64_t elements, cudaStream_t stream);

cudaError_t queue_rescale(const float* squares, float* state, cudaStream_t stream);

}  // namespace rehearse::runtime
