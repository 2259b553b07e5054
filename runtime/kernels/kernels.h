// What computes the kernels of a program: the host's functions of this folder, or an accelerator,
// whose kernels give the same bits. Pointers are to memory where the kernels compute.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/kernels/averaging.h"
#include "runtime/kernels/low_rank.h"
#include "runtime/kernels/optimizer.h"
#include "runtime/kernels/quantise.h"
#include "runtime/kernels/sparsify.h"

namespace rehearse::runtime {

/// The functions of the headers above, by their names, but for draws of a normal distribution.
class Kernels {
 public:
  virtual ~Kernels() = default;

  virtual void measure(std::span<const Values> sources, double scale, bool add, float* norm) = 0;
  virtual void decide(const OptimizerStep& step, const NormAndScale& gradients, double max_norm,
                      SkipCount* skips, StepScalars* scalars, double* square_norm) = 0;
  virtual void update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay,
                      const StepScalars* scalars) = 0;
  virtual void rescale(const float* squares, float* state) = 0;
  virtual void observe(const Values& values, int stride, const NormAndScale& gradients,
                       float* state) = 0;
  virtual void average(const Average& work) = 0;
  virtual void select(const program::Kernel& kernel, const SelectStep& step, const void* gradient,
                      program::DType type, float* residual, float* threshold,
                      std::byte* packet) = 0;
  virtual void scatter_add(const program::Kernel& kernel, const SelectStep& step,
                           const std::byte* packets, std::int64_t count, std::int64_t begin,
                           std::int64_t end, float* target) = 0;
  virtual void quantise(const program::Kernel& kernel, RandomKey key, const void* source,
                        program::DType type, std::int64_t begin, std::int64_t parts,
                        float* residual, std::byte* packets) = 0;
  virtual void dequantise(const program::Kernel& kernel, const std::byte* packets,
                          std::int64_t count, float* target) = 0;
  virtual void dequantise_sum(const program::Kernel& kernel, const std::byte* packets,
                              std::int64_t count, std::int64_t begin, float* target) = 0;
  virtual void project(const program::Factors& size, const float* matrix, const float* right,
                       float* left) = 0;
  virtual void orthonormalise(const program::Factors& size, float* left) = 0;
  virtual void project_back(const program::Factors& size, const float* matrix, const float* left,
                            float* right) = 0;
  virtual void expand(const program::Factors& size, const float* left, const float* right,
                      float scale, float* target, float* residual) = 0;
  virtual void add_to_residual(const float* source, float* residual, std::int64_t elements) = 0;
  virtual void blend_momentum(double beta1, double scale, const float* moment, float* target,
                              std::int64_t elements) = 0;
};

}  // namespace rehearse::runtime
