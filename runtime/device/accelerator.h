// What a device has whose bodies only queue work, as those of a GPU do: memory that such work and
// the host share, kernels, and communicators. Whatever a body asks for here comes in the order of
// the stream that runs the body.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/kernels/averaging.h"
#include "runtime/kernels/optimizer.h"
#include "runtime/kernels/sparsify.h"

namespace rehearse::runtime {

class Communicator;

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  /// The CUDA device on which LibTorch allocates what bodies need; -1: the host's memory, which an
  /// emulated device uses.
  virtual int cuda_index() const = 0;
  /// Memory of the host, filled with 0, that queued work reads and writes as the device's own.
  virtual std::shared_ptr<std::byte> pinned(std::int64_t bytes) = 0;
  /// The most bytes of its memory that were in use at once: what Device::allocate gave, and what
  /// LibTorch allocated in bodies.
  virtual std::int64_t peak_bytes() = 0;

  // Only running bodies call these.

  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  /// Blocks the host until the device has done all that the body's stream holds.
  virtual void finish() = 0;

  // Kernels: the functions of runtime/kernels (optimizer.h, averaging.h, sparsify.h), with the same
  // bits. Every pointer is to memory of the device or to pinned memory.

  virtual void measure(std::span<const Values> sources, double scale, bool add, float* norm) = 0;
  virtual void decide(const OptimizerStep& step, const NormAndScale& gradients, double max_norm,
                      SkipCount* skips, StepScalars* scalars, double* square_norm) = 0;
  virtual void update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay,
                      const StepScalars* scalars) = 0;
  virtual void rescale(const float* squares, float* state) = 0;
  virtual void observe(const void* values, program::DType type, std::int64_t elements, int stride,
                       const NormAndScale& gradients, float* state) = 0;
  virtual void average(const Average& work) = 0;
  /// Of Selector::top_k.
  virtual void select(const program::Kernel& kernel, const SelectStep& step, const void* gradient,
                      program::DType type, float* residual, std::byte* packet) = 0;
  /// Of packets of a fixed size that say where their entries are. A damaged one makes `target` NaN.
  virtual void scatter_add(const program::Kernel& kernel, const SelectStep& step,
                           const std::byte* packets, std::int64_t count, std::int64_t begin,
                           std::int64_t end, float* target) = 0;

  // The host calls this while no body runs.

  /// `wire`: a name that is unique in the run and the same at every member. `ranks` are processes,
  /// this one among them. Bodies use it, after it is connected.
  virtual std::unique_ptr<Communicator> communicator(const std::string& wire,
                                                     std::vector<Id> ranks) = 0;
};

}  // namespace rehearse::runtime
