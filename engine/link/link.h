// The linker proves that a program can run and that its result does not depend on timing. It
// matches channels and rejects deadlocks (a cycle, an unmatched send, a collective that ranks issue
// in different orders), data races, reads before writes and layout mismatches. It resolves each
// role into the flat tables that executors walk.
//
// Race rule, with L the smallest lag (in steps) along any path of waits: read-after-write needs
// L(writer -> reader) <= age, write-after-read needs L(reader -> writer) <= versions - age.
//
//   versions = 2, age = 1: R of step s reads what W wrote in step s - 1
//
//   W(s-1) --------> R(s) --------> W(s+1)    W(s+1) overwrites the version of W(s-1)
//      L <= age = 1     L <= versions - age = 1
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/link/memory_parts.h"
#include "engine/program/program.h"

namespace rehearse::link {

/// What the linker adds to an op. Ops of different ranks meet at (channel, step, sequence).
struct LinkedOp {
  std::uint32_t sequence = 0;  // n-th op of a step on its channel
  Id peer_op = none;           // send/receive: the op index in the peer role
  // Communication: bytes of the payload (of a collective: the whole group's tensor). Other ops:
  // bytes read plus bytes written.
  std::int64_t bytes = 0;
  std::int64_t elements = 0;
  program::DType wire = program::DType::f32;
  /// Value instances whose last use may be this op. An instance is freed when every op that lists
  /// it has ended.
  std::vector<program::Ref> dies = {};
};
/// One wait of an op: for the instance of `op` that serves the step `lag` steps before its own.
struct Wait {
  Id op = none;
  int lag = 0;
  int back = 0;  // macro-iterations of OrderedProgram::order between the two instances
};
/// What each op of a role waits for, besides the previous op on its lane: the ops in its `after`
/// list and, on a lane by arrival, its own instance of the previous step. All schedulers read this
/// one table: the max-plus dry run (whole and folded), the event queue and the simulator
/// (readiness.h), and the lanes of a real rank.
class WaitTable {
 public:
  std::span<const Wait> of(Id op) const {
    return {waits_.data() + first_[op], waits_.data() + first_[op + 1]};
  }
  /// The reverse table: of(op) lists the waits for `op`, and Wait::op is the op that waits.
  WaitTable transposed() const;

  /// Builds the table op by op: `add` every wait of an op, then `end_op`.
  void reserve(std::size_t ops, std::size_t waits) {
    first_.reserve(ops + 1), waits_.reserve(waits);
  }
  void add(Wait wait) { waits_.push_back(wait); }
  void end_op() { first_.push_back(static_cast<std::uint32_t>(waits_.size())); }

 private:
  std::vector<Wait> waits_ = {};
  std::vector<std::uint32_t> first_ = {0};  // by op; one entry more for the end
};
struct LinkedRole {
  std::vector<LinkedOp> ops = {};
  std::vector<std::vector<Id>> lane_ops = {};  // [lane]: its ops in issue order
  WaitTable waits = {};
};
/// One op of one role. An event is the set of ops that meet in a step (the members of a collective,
/// a send and its receive); a local op is an event by itself.
struct RoleOp {
  Id role = none, op = none;
  friend bool operator==(RoleOp, RoleOp) = default;
};
/// The members of every event, stored one event after the other in one array.
class EventTable {
 public:
  std::size_t size() const { return begin_.size() - 1; }
  std::span<const RoleOp> operator[](std::size_t event) const {
    return {members_.data() + begin_[event], members_.data() + begin_[event + 1]};
  }
  void add(std::span<const RoleOp> members) {
    members_.insert(members_.end(), members.begin(), members.end());
    begin_.push_back(static_cast<std::uint32_t>(members_.size()));
  }
  void reserve(std::size_t events) { members_.reserve(events), begin_.reserve(events + 1); }

  class Iterator {
   public:
    Iterator(const EventTable& events, std::size_t at) : events_(&events), at_(at) {}
    std::span<const RoleOp> operator*() const { return (*events_)[at_]; }
    Iterator& operator++() { return ++at_, *this; }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    const EventTable* events_;
    std::size_t at_;
  };
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }

 private:
  std::vector<RoleOp> members_ = {};
  std::vector<std::uint32_t> begin_ = {0};  // by event; one entry more for the end
};
/// One op in a walk over all roles. In macro-iteration i the op serves step i - offset; it is
/// skipped when the run has no such step. Every op comes after the ops that it waits for. The ops
/// of one rendezvous are adjacent and have the same offset.
struct OrderedOp {
  Id role = none, op = none;
  int offset = 0;
};
/// Bytes that one storage takes.
struct StorageUse {
  std::string name = {};
  std::int64_t bytes = 0;  // peak
};
/// Bytes that a rank of a role needs in its device's memory, and `host` bytes in its host's. The
/// plan uses only the order that the program guarantees, so it does not depend on timing: two
/// values share bytes only if every use of one precedes the first write of the other.
struct RoleMemory {
  std::int64_t state = 0, buffer = 0, value = 0;
  std::int64_t host = 0;                 // not in `total`
  std::int64_t snapshots = 0;            // of `host`: copies of state that are saved
  std::vector<StorageUse> largest = {};  // largest first
  /// Of `total`, when its values take most: they sum up to it.
  Parts parts = {};
  std::int64_t total() const { return state + buffer + value; }
};
/// The wait `after[index]` of an op, when other waits already imply it and it is not a throttle.
struct RedundantWait {
  Id role = none, op = none;
  std::size_t index = 0;
};
/// A program whose channels match and whose ops are sorted into an order that every executor can
/// follow. Costs and the dry run need no more than this. Made by `order`.
struct OrderedProgram {
  program::Program program = {};
  std::vector<LinkedRole> roles = {};
  EventTable events = {};                      // the events of one step
  std::vector<std::vector<Id>> event_of = {};  // [role][op]
  std::vector<OrderedOp> order = {};
  int max_offset = 0;
  std::vector<Id> role_of = {}, place_of = {};  // by rank: its role, its index in the role
  bool mailboxes = false;
};
/// A program that passed all checks of the linker, with the memory that it needs. Made by `link`.
struct LinkedProgram : OrderedProgram {
  std::vector<RedundantWait> redundant = {};  // waits that other waits or lane order imply
  std::vector<RoleMemory> memory = {};        // by role
};

/// Links in full. Throws ProgramError, which prints the ops concerned and marks the wrong one.
LinkedProgram link(program::Program program);
/// A faster `link`: races are not detected, and LinkedOp::dies stays empty. For searches, which
/// link in full only the few programs that they keep, and for what is only predicted.
OrderedProgram order(program::Program program);
/// The same program without redundant waits. Does not check for races.
program::Program without_redundant_waits(program::Program program);

}  // namespace rehearse::link
