// What a plug-in adds to the runtime: the memory, streams, events and communicators of an
// accelerator. The plug-in is a shared library (runtime/cuda/) that is loaded when such a device is
// there, so that a program for the CPU starts without its libraries. A lane is then still a thread,
// and what it runs is queued on a stream of its own; `after` is an event between streams.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "runtime/communication/communicator.h"
#include "runtime/control/control.h"

namespace rehearse::runtime {

class Event {
 public:
  virtual ~Event() = default;
  /// True when everything before the record has ended. Throws BackendError after a device error.
  virtual bool done() const = 0;
  /// Waits on the host.
  virtual void wait() const = 0;
  /// Seconds between two recorded events made with `timed`.
  virtual Seconds since(const Event& earlier) const = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  /// Work that this thread queues through torch from now on goes to this stream.
  virtual void make_current() = 0;
  virtual void record(Event& event) = 0;
  /// Work queued later starts after the event.
  virtual void wait(const Event& event) = 0;
  /// Waits on the host until the stream is empty, while watching the communicators made on it:
  /// an asynchronous NCCL error, a timeout or a verdict of the control plane aborts them and
  /// throws BackendError.
  virtual void synchronize() = 0;
};

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
  /// Runs collectives in the order they are queued on `stream`. All members make it together.
  virtual std::unique_ptr<Communicator> communicator(const std::string& channel,
                                                     std::vector<Id> ranks, Stream& stream) = 0;
};

/// Whether this machine has a device of a kind the plug-in serves.
bool has_accelerator();
/// The accelerator of this rank (device local_rank modulo their number), from the plug-in beside
/// the program or at `path`. Throws BackendError that names what is missing: the plug-in, a library
/// it needs, a driver, a device.
std::unique_ptr<Accelerator> load_accelerator(Control& control, const std::string& path = {});

/// What the plug-in exports under the name "rehearse_accelerator". Returns null and fills `error`
/// on failure. `version` must equal accelerator_version.
inline constexpr int accelerator_version = 1;
using MakeAccelerator = Accelerator*(int version, Control* control, std::string* error);

}  // namespace rehearse::runtime
