// For bodies on an accelerator whose work it has no kernel for: they compute on the host, with
// copies of what they read and write. That is slow, since the host waits for the device, but it
// gives the CPU's bits.
//
//   HostCopies copies(device);   the device has done all that the body's stream held
//   memory.read, memory.write    give copies in host memory
//   copies.store()               what was written goes back to the device
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/program/program.h"
#include "runtime/device/device.h"

namespace rehearse::runtime {

class HostCopies {
 public:
  /// For the running body. `device` has an accelerator.
  explicit HostCopies(Device& device);
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Those of the body that this thread runs; null: it computes on the device.
  static HostCopies* current();

  /// The copy of a flat tensor of the device; `writes`: it will change. Throws ProgramError for a
  /// tensor that overlaps another one without being equal to it.
  at::Tensor of(const at::Tensor& tensor, bool writes);
  void store();

 private:
  struct Pair {
    at::Tensor there = {}, here = {};
    bool written = false;
  };
  std::vector<Pair> pairs_ = {};
};

}  // namespace rehearse::runtime
