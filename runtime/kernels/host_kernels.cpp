#include "runtime/kernels/host_kernels.h"

namespace rehearse::runtime {

void HostKernels::measure(std::span<const Values> sources, double scale, bool add, float* norm) {
  runtime::measure(sources, scale, add, norm);
}

void HostKernels::decide(const OptimizerStep& step, const NormAndScale& gradients, double max_norm,
                         SkipCount* skips, StepScalars* scalars, double* square_norm) {
  runtime::decide(step, gradients, max_norm, *skips, *scalars, square_norm);
}

void HostKernels::update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay,
                         const StepScalars* scalars) {
  runtime::update(step, interval, decay, *scalars);
}

void HostKernels::rescale(const float* squares, float* state) { runtime::rescale(squares, state); }

void HostKernels::observe(const Values& values, int stride, const NormAndScale& gradients,
                          float* state) {
  runtime::observe(values.data, values.type, values.elements, stride, gradients, state);
}

void HostKernels::average(const Average& work) { runtime::average(work); }

void HostKernels::select(const program::Kernel& kernel, const SelectStep& step,
                         const void* gradient, program::DType type, float* residual,
                         float* threshold, std::byte* packet) {
  runtime::select(kernel, step, gradient, type, residual, threshold, packet, scratch_);
}

void HostKernels::scatter_add(const program::Kernel& kernel, const SelectStep& step,
                              const std::byte* packets, std::int64_t count, std::int64_t begin,
                              std::int64_t end, float* target) {
  runtime::scatter_add(kernel, step, packets, count, begin, end, target, scratch_);
}

void HostKernels::quantise(const program::Kernel& kernel, RandomKey key, const void* source,
                           program::DType type, std::int64_t begin, std::int64_t parts,
                           float* residual, std::byte* packets) {
  runtime::quantise(kernel, key, source, type, begin, parts, residual, packets);
}

void HostKernels::dequantise(const program::Kernel& kernel, const std::byte* packets,
                             std::int64_t count, float* target) {
  runtime::dequantise(kernel, packets, count, target);
}

void HostKernels::dequantise_sum(const program::Kernel& kernel, const std::byte* packets,
                                 std::int64_t count, std::int64_t begin, float* target) {
  runtime::dequantise_sum(kernel, packets, count, begin, target);
}

void HostKernels::project(const program::Factors& size, const float* matrix, const float* right,
                          float* left) {
  runtime::project(size, matrix, right, left);
}

void HostKernels::orthonormalise(const program::Factors& size, float* left) {
  runtime::orthonormalise(size, left);
}

void HostKernels::project_back(const program::Factors& size, const float* matrix, const float* left,
                               float* right) {
  runtime::project_back(size, matrix, left, right);
}

void HostKernels::expand(const program::Factors& size, const float* left, const float* right,
                         float scale, float* target, float* residual) {
  runtime::expand(size, left, right, scale, target, residual);
}

void HostKernels::add_to_residual(const float* source, float* residual, std::int64_t elements) {
  runtime::add_to_residual(source, residual, elements);
}

void HostKernels::blend_momentum(double beta1, double scale, const float* moment, float* target,
                                 std::int64_t elements) {
  runtime::blend_momentum(beta1, scale, moment, target, elements);
}

}  // namespace rehearse::runtime
