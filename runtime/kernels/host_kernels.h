// The kernels on the host.
#pragma once
#include "runtime/kernels/kernels.h"

namespace rehearse::runtime {

/// One serves one lane at a time, because its selects share their working memory.
class HostKernels : public Kernels {
 public:
  /// Allocates what a select needs, or a scatter_add that repeats its draws.
  void fit(const program::Kernel& kernel) { scratch_.fit(kernel); }

  void measure(std::span<const Values> sources, double scale, bool add, float* norm) override;
  void decide(const OptimizerStep& step, const NormAndScale& gradients, double max_norm,
              SkipCount* skips, StepScalars* scalars, double* square_norm) override;
  void update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay,
              const StepScalars* scalars) override;
  void rescale(const float* squares, float* state) override;
  void observe(const Values& values, int stride, const NormAndScale& gradients,
               float* state) override;
  void average(const Average& work) override;
  void select(const program::Kernel& kernel, const SelectStep& step, const void* gradient,
              program::DType type, float* residual, float* threshold, std::byte* packet) override;
  void scatter_add(const program::Kernel& kernel, const SelectStep& step, const std::byte* packets,
                   std::int64_t count, std::int64_t begin, std::int64_t end,
                   float* target) override;
  void quantise(const program::Kernel& kernel, RandomKey key, const void* source,
                program::DType type, std::int64_t begin, std::int64_t parts, float* residual,
                std::byte* packets) override;
  void dequantise(const program::Kernel& kernel, const std::byte* packets, std::int64_t count,
                  float* target) override;
  void dequantise_sum(const program::Kernel& kernel, const std::byte* packets, std::int64_t count,
                      std::int64_t begin, float* target) override;
  void project(const program::Factors& size, const float* matrix, const float* right,
               float* left) override;
  void orthonormalise(const program::Factors& size, float* left) override;
  void project_back(const program::Factors& size, const float* matrix, const float* left,
                    float* right) override;
  void expand(const program::Factors& size, const float* left, const float* right, float scale,
              float* target, float* residual) override;
  void add_to_residual(const float* source, float* residual, std::int64_t elements) override;
  void blend_momentum(double beta1, double scale, const float* moment, float* target,
                      std::int64_t elements) override;

 private:
  SelectScratch scratch_ = {};
};

}  // namespace rehearse::runtime
