// A GPU as a device: LibTorch's streams, CUDA's events, state in memory of its own beside
// LibTorch's caching allocator, the kernels of kernels.h, NCCL.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_stream.h"
#include "runtime/cuda/watch.h"
#include "runtime/device/accelerator.h"
#include "runtime/device/device.h"

namespace rehearse::runtime {

class CudaDevice : public Device, public Accelerator {
 public:
  /// Takes the device local_rank, or shares devices where there are fewer than ranks. Throws
  /// BackendError.
  explicit CudaDevice(Control& control);

  std::string name() const override;
  bool asynchronous() const override { return true; }
  std::unique_ptr<Stream> stream(const std::string& name) override;
  std::shared_ptr<Event> event(Id op) override;
  std::shared_ptr<Event> timed_event(Id op) override;
  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override;
  std::byte* outside(std::byte* inside) const override { return inside; }
  std::byte* inside(std::byte* outside) const override { return outside; }
  void fetch(const std::byte* inside, std::byte* to, std::int64_t bytes) override;
  void store(std::byte* inside, const std::byte* from, std::int64_t bytes) override;
  void settled() override {}
  void check_body() const override {}
  void touch(const Touch&) override {}
  void used(const void* memory) override;
  void spoil(std::byte*, std::int64_t) override {}
  Accelerator* accelerator() override { return this; }

  int cuda_index() const override;
  std::shared_ptr<std::byte> pinned(std::int64_t bytes) override;
  std::int64_t peak_bytes() override;
  void copy(void* to, const void* from, std::int64_t bytes) override;
  void finish() override;
  bool has(const program::Kernel& kernel) const override;
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
  std::unique_ptr<Communicator> communicator(const std::string& wire,
                                             std::vector<Id> ranks) override;

 private:
  struct Most {
    std::atomic<std::int64_t> now = 0, most = 0;
  };
  void share_device();

  std::shared_ptr<Watch> watch_;
  int index_;
  std::shared_ptr<Most> allocated_;  // bytes of `allocate`
};

}  // namespace rehearse::runtime
