// Communication between ranks, as lanes see it. A communicator serves one channel within one group
// of ranks and belongs to one lane (one thread). Our own sockets play the schedules of
// engine/collectives; Gloo and NCCL (in the plug-in) implement the same interface. Buffers are
// plain memory. After `prepare`, a collective needs no allocation and no look-up.
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

/// A collective, as `prepare` takes it. `elements` counts the whole tensor of the group; member i
/// of n owns part [i * elements / n, (i + 1) * elements / n).
struct CollectiveSpec {
  program::Move move = program::Move::all_reduce;
  program::Algorithm algorithm = program::Algorithm::automatic;
  program::DType dtype = program::DType::f32;
  std::int64_t elements = 0;
  int root = 0;  // of moves with a root: a member; of a rotate: the distance
  /// True if the source may be overwritten although it is not the target. It saves a copy.
  bool consume = false;
  friend bool operator==(const CollectiveSpec&, const CollectiveSpec&) = default;
};

/// Payload bytes since construction, without framing.
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

  /// Connects the members, who all call it. Those that need no call connect when they are used.
  virtual void connect() {}

  /// Prepares a collective (schedule, scratch memory) and returns a handle for `run`; equal specs
  /// give the same handle. Every member prepares the same specs. Throws InputError when the
  /// algorithm cannot serve the move.
  virtual int prepare(const CollectiveSpec& spec) = 0;
  /// Runs a prepared collective on plain memory:
  ///
  ///   move               source        target
  ///   all_reduce         whole         whole
  ///   broadcast          whole         whole
  ///   reduce             whole         whole, written at the root only
  ///   reduce_scatter     whole         own part
  ///   all_gather         own part      whole
  ///   all_to_all         whole         whole: part i comes from member i, part j goes to member j
  ///   rotate             whole         whole: that of the member `distance` places before
  ///   gather             own part      whole, at the root only
  ///   scatter            whole, at     own part
  ///                      the root only
  ///
  /// It runs in place when both pointers are equal; with a part, when the part's pointer lies at
  /// its place in the whole. An all_to_all and a rotate never run in place; an all_to_all's parts
  /// are equal. The root of a gather or a scatter whose pointers are equal has no part of its own
  /// to copy. Sums are made in the dtype that is sent: f32 in fp32, i32 and u8 with wrap-around,
  /// bf16 and f16 rounded after every addition. On the CPU it returns when the target holds the
  /// result; an accelerator only queues it on the lane's stream. Throws BackendError that names
  /// channel, peer rank and what was waited for.
  virtual void run(int handle, void* source, void* target) = 0;

  /// Point to point, to and from one member. `send` returns when the buffer may be reused. One
  /// thread may send while another receives.
  virtual void send(Buffer buffer, int to) = 0;
  virtual void recv(Buffer buffer, int from) = 0;
  /// A send and a receive at once, as every member of a ring does. By default one after the other;
  /// the last member receives first, so that the ring does not deadlock.
  virtual void exchange(Buffer out, int to, Buffer in, int from) {
    if (member() < to) send(out, to);
    recv(in, from);
    if (member() >= to) send(out, to);
  }
  virtual void barrier() = 0;

  virtual Traffic traffic() const = 0;
  /// Bytes of scratch memory held, which no plan counts (docs/program.md, Memory).
  virtual std::int64_t scratch_bytes() const = 0;

  /// Prepare and run in place, for set-up code and tests.
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

/// What a Take got: the sender's rank (`none`: every sender has closed and no message is left), and
/// whether the sender marked the message as its last one to this rank.
struct Delivery {
  Id from = none;
  bool last = false;
};

/// A channel whose messages are taken in order of arrival, whoever sent them (parameter servers).
/// Any thread may put; one thread takes.
class Mailbox {
 public:
  virtual ~Mailbox() = default;
  /// Copies the payload and returns. It waits only while unsent messages fill the mailbox's bound,
  /// and throws BackendError when that lasts too long. `last`: a mark for the receiver (Delivery).
  virtual void put(Buffer payload, Id to_rank, bool last) = 0;
  void put(Buffer payload, Id to_rank) { put(payload, to_rank, false); }
  /// Waits for the next message and copies it to `target`. Throws BackendError when the sizes
  /// differ.
  virtual Delivery take(Buffer target) = 0;
  /// As take, but does not wait: also returns `none` when no message is there now.
  virtual Delivery try_take(Buffer target) = 0;
  /// This rank puts no more. Tells every receiver, and returns when all messages are handed to the
  /// kernel. Does nothing the second time, or on a rank that is no sender.
  virtual void close() = 0;
  virtual Traffic traffic() const = 0;
};

}  // namespace rehearse::runtime
