// Where a rank's tensors live and its ops run. An op is issued by its lane's thread and runs when
// its lane's stream gets to it, which may be later. The CPU is a device too: there an op runs while
// it is issued.
//
//   lane thread   wait until the ops that this op needs are issued   (counters, LaneRunner)
//                 stream.wait(their events), stream.launch(body), stream.record(own event)
//   stream        runs what it was given, in this order
//
// Only the body of an op, while the stream runs it, touches the device's memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/program/program.h"

namespace rehearse::runtime {

class Accelerator;
class Control;

/// A point in a stream's work. Recording it again moves it.
class Event {
 public:
  virtual ~Event() = default;
  /// True when all work before the last record has ended. Throws BackendError after a device error.
  virtual bool done() const = 0;
  /// Blocks the host until then.
  virtual void wait() const = 0;
  /// Seconds on the device from the last record of `begin` to the last one of this event. Both are
  /// Device::timed_event's and done.
  virtual double seconds_since(const Event& begin) const = 0;
};

/// One op of one step. Trivially copyable, so that launching allocates nothing. `run` does not
/// throw: what went wrong is kept by `self`.
struct Body {
  void (*run)(void* self, const Body& body) = nullptr;
  void* self = nullptr;
  Id lane = none, op = none;
  std::int64_t step = 0;
  bool meets = false;  // it meets other ranks: a collective, a send or a receive
};

/// A queue of device work, which runs in order. One thread at a time uses a stream.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void launch(const Body& body) = 0;
  /// The same for a body that is the host's own and may take long: it sleeps or writes files, and
  /// may not touch the device's memory.
  virtual void call(const Body& body) = 0;
  virtual void record(Event& event) = 0;
  /// Work that is launched later starts after the event's last record.
  virtual void wait(const Event& event) = 0;
  /// Blocks the host until the stream is empty.
  virtual void synchronize() = 0;
};

/// What a body reads or writes: elements [begin, end) of one instance of a storage.
struct Touch {
  const void* memory = nullptr;  // whose storage it is
  Id storage = none;
  std::size_t instance = 0;
  std::int64_t begin = 0, end = 0;
  bool writes = false;
};

/// Bytes of a device as the host may read them: the device's own, or a copy.
struct HostBytes {
  std::span<const std::byte> bytes = {};
  std::shared_ptr<const void> copy = {};
  const std::byte* data() const { return bytes.data(); }
  std::size_t size() const { return bytes.size(); }
};

class Device {
 public:
  virtual ~Device() = default;
  /// For people: "cpu", "queues (seed 7)".
  virtual std::string name() const = 0;
  /// False: an op has ended when `launch` returns, as on the CPU.
  virtual bool asynchronous() const = 0;

  virtual std::unique_ptr<Stream> stream(const std::string& name) = 0;
  /// `op`: whose end it stands for, for messages.
  virtual std::shared_ptr<Event> event(Id op) = 0;
  /// One that knows when the device reached it.
  virtual std::shared_ptr<Event> timed_event(Id op) = 0;

  /// Memory for state and buffers, filled with 0, aligned to 64 bytes. Returns the address by which
  /// bodies reach it.
  virtual std::shared_ptr<std::byte> allocate(std::int64_t bytes) = 0;
  /// The address of such memory that may be handed around outside of bodies, and back: where the
  /// host may not touch the device's memory, reading or writing at it ends the process.
  virtual std::byte* outside(std::byte* inside) const = 0;
  virtual std::byte* inside(std::byte* outside) const = 0;
  /// Copies of such memory, by the address for bodies, while no stream runs anything.
  virtual void fetch(const std::byte* inside, std::byte* to, std::int64_t bytes) = 0;
  virtual void store(std::byte* inside, const std::byte* from, std::int64_t bytes) = 0;

  /// All streams are empty and no lane runs: whatever was done comes before all that follows.
  virtual void settled() = 0;
  /// Throws ProgramError if the calling thread may not touch the device's memory now.
  virtual void check_body() const = 0;
  /// The running body is about to do this. Throws ProgramError if nothing orders it and what
  /// another stream does with the same elements.
  virtual void touch(const Touch& touch) = 0;
  /// The running body uses memory that LibTorch gave to a body, maybe of another stream. When its
  /// last handle goes, it is not to be given out again before this stream has got past this body.
  virtual void used(const void* memory) = 0;
  /// Overwrites a value that nobody may read any more, if it is the device's custom to do so.
  virtual void spoil(std::byte* bytes, std::int64_t count) = 0;

  /// Null: bodies run on the host, which computes with the device's memory. Else bodies only queue
  /// work for a GPU.
  virtual Accelerator* accelerator() { return nullptr; }
};

/// The function that a plug-in exports as "rehearse_device". `version` must equal device_version.
/// `control` outlives the device; null: this rank runs alone. On failure it returns null and fills
/// `error`.
inline constexpr int device_version = 4;
using MakeDevice = Device*(int version, int rank, Control* control, std::string* error);

}  // namespace rehearse::runtime
