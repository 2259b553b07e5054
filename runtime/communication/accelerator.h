// What a plug-in adds to the runtime: memory, streams, events and communicators of an accelerator.
// The plug-in is a shared library (runtime/cuda/), loaded only when such a device is there, so a
// program for the CPU starts without CUDA libraries. A lane is still a thread; its work is queued
// on a stream of its own, and a program's `after` becomes an event between streams.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "runtime/communication/communicator.h"
#include "runtime/control/control.h"
#include "runtime/device/device.h"

namespace rehearse::runtime {

struct AcceleratorInfo {
  std::string name = {};
  Bytes memory = {}, free_memory = {};
  int index = 0, major = 0, minor = 0;
};

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual AcceleratorInfo info() const = 0;
  virtual std::unique_ptr<Stream> stream(bool high_priority) = 0;
  virtual std::unique_ptr<Event> event(bool timed) = 0;
  /// A communicator that runs collectives in the order in which they are queued on `stream`. All
  /// members make it together.
  virtual std::unique_ptr<Communicator> communicator(const std::string& channel,
                                                     std::vector<Id> ranks, Stream& stream) = 0;
};

/// Whether this machine has a device that the plug-in serves.
bool has_accelerator();
/// The accelerator of this rank (device local_rank, or the only visible one), from the plug-in at
/// `path` or, if empty, beside the program. Throws BackendError that names what is missing: the
/// plug-in, a library, a driver or a device.
std::unique_ptr<Accelerator> load_accelerator(Control& control, const std::string& path = {});

/// The function that the plug-in exports as "rehearse_accelerator". `version` must equal
/// accelerator_version. On failure it returns null and fills `error`.
inline constexpr int accelerator_version = 1;
using MakeAccelerator = Accelerator*(int version, Control* control, std::string* error);

}  // namespace rehearse::runtime
