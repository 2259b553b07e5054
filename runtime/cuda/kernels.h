// The device's kernels: the functions of runtime/kernels/optimizer.h, with the same bits, because
// they make the same additions in the same order (runtime/kernels/elements.h). They only queue
// their work. nvcc does not compile engine/program/program.h, so its types stay outside.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/kernels/elements.h"

namespace rehearse::runtime::cuda {

enum class Number : std::uint8_t { f32, bf16, f16 };

/// As OptimizerInterval, with the settings of the step.
struct Interval {
  StepFactors factors = {};
  const StepScalars* scalars = nullptr;
  void* param = nullptr;
  const void* grad = nullptr;
  void* moment1 = nullptr;
  void* moment2 = nullptr;
  float* master = nullptr;
  Number param_type = Number::f32, grad_type = Number::f32, moment_type = Number::f32;
  bool fresh = false, adamw = true, frozen = false;
};
cudaError_t update(const Interval& interval, std::int64_t elements, cudaStream_t stream);

/// Elements whose squares are added up in fp32, in `lanes` sums; larger sums are in double.
inline constexpr std::int64_t block = 4096, lanes = 16;
inline std::int64_t blocks_of(std::int64_t elements) { return (elements + block - 1) / block; }

/// total = (first ? 0 : total) + the sum of squares of `values`. Working memory: `lane_sums` has
/// `lanes` numbers for each block, `block_sums` has one.
cudaError_t add_squares(const void* values, Number type, std::int64_t elements, bool first,
                        float* lane_sums, double* block_sums, double* total, cudaStream_t stream);
/// norm = (add ? norm : 0) + scale x total.
cudaError_t to_norm(const double* total, double scale, bool add, float* norm, cudaStream_t stream);

cudaError_t decide(const Decision& decision, const NormAndScale& gradients, SkipCount* skips,
                   StepScalars* scalars, double* square_norm, cudaStream_t stream);
cudaError_t rescale(const float* squares, float* state, cudaStream_t stream);

}  // namespace rehearse::runtime::cuda
