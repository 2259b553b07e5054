// Communication between ranks, as lanes see it. A communicator serves one channel within one group
// of ranks and belongs to one lane (one thread). Sockets of our own play the schedules of
// engine/collectives; Gloo and NCCL (the plug-in) are further implementations of the same
// interface. Buffers are plain memory: no tensor type, no allocation and no look-up once a
// collective is prepared.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::runtime {

/// Memory that a transfer reads or writes.
struct Buffer {
  void* data = nullptr;
  std::int64_t elements = 0;
  program::DType dtype = program::DType::f32;
  std::int64_t bytes() const { return elements * size_of(dtype); }
};

/// A collective as prepared once: `elements` is the whole group's tensor, of which member i of n
/// owns part [i * elements / n, (i + 1) * elements / n).
struct CollectiveSpec {
  program::Move move = program::Move::all_reduce;
  program::Algorithm algorithm = program::Algorithm::automatic;
  program::DType dtype = program::DType::f32;
  std::int64_t elements = 0;
  int root = 0;  // broadcast, reduce: a member
  /// The source may be overwritten although it is not the target (nobody reads it afterwards):
  /// saves a copy.
  bool consume = false;
  friend bool operator==(const CollectiveSpec&, const CollectiveSpec&) = default;
};

/// Payload bytes since construction; framing excluded.
struct Traffic {
  std::int64_t sent = 0, received = 0;
};

class Communicator {
 public:
  Communicator(std::string channel, std::vector<Id> ranks, int member)
      : channel_(std::move(channel)), ranks_(std::move(ranks)), member_(member) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& channel() const { return channel_; }
  const std::vector<Id>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int member() const { return member_; }  // this rank's place in ranks()

  /// Readies a collective (schedule, scratch) and returns a handle for `run`; equal specs give the
  /// same handle. Every member prepares the same specs. Throws InputError when the algorithm cannot
  /// serve the move.
  virtual int prepare(const CollectiveSpec& spec) = 0;
  /// Runs a prepared collective. `source` and `target` point to
  ///   all_reduce, broadcast: the whole tensor each; reduce_scatter: the whole tensor -> own part;
  ///   all_gather: own part -> the whole tensor; reduce: whole tensors, the target is written at
  ///   the root only.
  /// In place when both are equal (for the two with parts: when the part's pointer lies at its
  /// place in the whole). Sums are made in the wire's dtype: f32 for f32, i32 and u8 exactly,
  /// bf16 and f16 rounded after every addition. On the CPU it returns when the target holds the
  /// result; an accelerator only queues it on the lane's stream. Throws BackendError that names
  /// channel, peer rank and what was waited for.
  virtual void run(int handle, void* source, void* target) = 0;

  /// To and from one member. A send returns when the buffer may be reused. One thread may send
  /// while another receives.
  virtual void send(Buffer buffer, int to) = 0;
  virtual void recv(Buffer buffer, int from) = 0;
  /// Both at once, as every member of a ring does. One after the other where an implementation has
  /// nothing better: then the last member receives first, and nobody waits for ever.
  virtual void exchange(Buffer out, int to, Buffer in, int from) {
    if (member() < to) send(out, to);
    recv(in, from);
    if (member() >= to) send(out, to);
  }
  virtual void barrier() = 0;

  virtual Traffic traffic() const = 0;
  /// Bytes of scratch memory held, which are in no plan (docs/program.md, Memory).
  virtual std::int64_t scratch_bytes() const = 0;

  /// Prepares and runs in place: for set-up code and tests.
  void all_reduce(Buffer whole, program::Algorithm algorithm = program::Algorithm::automatic) {
    run(prepare({.algorithm = algorithm, .dtype = whole.dtype, .elements = whole.elements}),
        whole.data, whole.data);
  }
  void broadcast(Buffer whole, int root,
                 program::Algorithm algorithm = program::Algorithm::automatic) {
    run(prepare({.move = program::Move::broadcast,
                 .algorithm = algorithm,
                 .dtype = whole.dtype,
                 .elements = whole.elements,
                 .root = root}),
        whole.data, whole.data);
  }

 private:
  std::string channel_;
  std::vector<Id> ranks_;
  int member_;
};

/// A channel on which messages are taken in the order they arrive, whoever sent them (parameter
/// servers). Any thread may put; one thread takes.
class Mailbox {
 public:
  virtual ~Mailbox() = default;
  /// Copies the payload and returns: it never waits for the receiver, unless more than the
  /// mailbox's bound is still on its way. Throws BackendError when that lasts.
  virtual void put(Buffer payload, Id to_rank) = 0;
  /// Waits for the next message, copies it to `target` and returns the rank that sent it; `none`
  /// when every sender has closed and nothing is left. Throws BackendError when sizes differ.
  virtual Id take(Buffer target) = 0;
  /// As take, but also returns `none` when no message is there now.
  virtual Id try_take(Buffer target) = 0;
  /// This rank puts no more: tells every receiver, and returns when all was handed to the kernel.
  /// Does nothing the second time, or on a rank that is no sender.
  virtual void close() = 0;
  virtual Traffic traffic() const = 0;
};

}  // namespace rehearse::runtime
