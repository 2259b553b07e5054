// What a device has whose bodies only queue work, as those of a GPU do: memory that such work and
// the host share, kernels, and communicators. Whatever a body asks for here comes in the order of
// the stream that runs the body.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/kernels/kernels.h"

namespace rehearse::runtime {

class Communicator;

class Accelerator : public Kernels {
 public:
  /// The CUDA device on which LibTorch allocates what bodies need; -1: the host's memory, which an
  /// emulated device uses.
  virtual int cuda_index() const = 0;
  /// Memory of the host, filled with 0, that queued work reads and writes as the device's own.
  virtual std::shared_ptr<std::byte> pinned(std::int64_t bytes) = 0;
  /// The most bytes of its memory that were in use at once: what Device::allocate gave, and what
  /// LibTorch allocated in bodies.
  virtual std::int64_t peak_bytes() = 0;

  /// Whether it has a kernel for this; the host computes what it lacks, on copies.
  virtual bool has(const program::Kernel& kernel) const = 0;

  // Only running bodies call these, and the kernels. These, too, only queue work, and their
  // pointers are to memory of the device or to pinned memory. A damaged packet makes the target of
  // a scatter_add NaN, since the host, which would refuse the packet, is ahead of the device.

  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  /// Blocks the host until the device has done all that the body's stream holds.
  virtual void finish() = 0;

  // The host calls this while no body runs.

  /// `wire`: a name that is unique in the run and the same at every member. `ranks` are processes,
  /// this one among them. Bodies use it, after it is connected.
  virtual std::unique_ptr<Communicator> communicator(const std::string& wire,
                                                     std::vector<Id> ranks) = 0;
};

}  // namespace rehearse::runtime
