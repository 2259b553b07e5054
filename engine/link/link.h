// The linker: proves that a program can run and means one thing. It matches channels, refuses
// deadlocks (a cycle, an unmatched send, a collective in another order), data races, reads before
// writes and layout mismatches, and resolves each role into the flat tables that executors walk.
// Race rule, with L the smallest lag along any path: read-after-write needs L(writer -> reader) <=
// age, write-after-read needs L(reader -> writer) <= versions - age.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::link {

/// One op's place in its channel's sequence: executors meet at (channel, step, sequence).
struct LinkedOp {
  std::uint32_t sequence = 0;  // n-th op of a step on its channel
  Id peer_op = none;           // send/receive: the op index in the peer role
  std::int64_t bytes = 0;  // payload of collectives (the whole group's tensor), sends, puts; bytes
                           // touched by kernels
  std::int64_t elements = 0;
  program::DType wire = program::DType::f32;
  /// Value instances that it may be the last to use: an instance is freed when every op that lists
  /// it has ended.
  std::vector<program::Ref> dies = {};
};
/// An op waits for the instance of `op` that serves `lag` steps before its own.
struct Wait {
  Id op = none;
  int lag = 0;
  int back = 0;  // macro-iterations of OrderedProgram::order between the two instances
};
/// What the ops of a role wait for, beside the op before them on their lane: their `after`, and on
/// a lane by arrival also their own instance of the step before. All schedulers read this one
/// table: the dry run, whole and folded, the event queue and the simulator (readiness.h), and the
/// lanes of a real rank.
class WaitTable {
 public:
  WaitTable() = default;
  /// `waits`: by op.
  explicit WaitTable(const std::vector<std::vector<Wait>>& waits);
  std::span<const Wait> of(Id op) const {
    return {waits_.data() + first_wait_[op], waits_.data() + first_wait_[op + 1]};
  }
  /// Those that wait for `op`: Wait::op is the one that waits.
  std::span<const Wait> dependents(Id op) const {
    return {dependents_.data() + first_dependent_[op],
            dependents_.data() + first_dependent_[op + 1]};
  }

 private:
  std::vector<Wait> waits_ = {}, dependents_ = {};
  std::vector<std::uint32_t> first_wait_ = {}, first_dependent_ = {};  // by op, and the end
};
struct LinkedRole {
  std::vector<LinkedOp> ops = {};
  std::vector<std::vector<Id>> lane_ops = {};  // ops by lane, in order
  WaitTable waits = {};
};
/// A rendezvous of a step: all (role, op) that meet. Local ops are events of their own.
struct RoleOp {
  Id role = none, op = none;
  friend bool operator==(RoleOp, RoleOp) = default;
};
/// Sets of ops that meet, one after the other in one array.
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
  std::vector<std::uint32_t> begin_ = {0};  // and where the last one ends
};
/// One op's turn in a walk over all roles: in macro-iteration i it serves step i - offset (skipped
/// while that is not a step). Every turn comes after the turns that it waits for; the ops of a
/// rendezvous are neighbours and share their offset.
struct OrderedOp {
  Id role = none, op = none;
  int offset = 0;
};
/// Bytes a rank of each role needs, planned from the order that the program guarantees, hence
/// independent of timing: two values share bytes only if every use of one precedes the first write
/// of the other.
struct StorageUse {
  std::string name = {};
  std::int64_t bytes = 0;  // most at any one time
};
struct RoleMemory {
  std::int64_t state = 0, buffer = 0, value = 0;
  std::vector<StorageUse> largest = {};  // largest first
  std::int64_t total() const { return state + buffer + value; }
};
/// A wait that is not a throttle and adds nothing: op's `after[index]`.
struct RedundantWait {
  Id role = none, op = none;
  std::size_t index = 0;
};
/// A program whose channels match and whose ops are in an order that every executor can follow:
/// what costs and the dry run need. `order` makes it.
struct OrderedProgram {
  program::Program program = {};
  std::vector<LinkedRole> roles = {};
  EventTable events = {};                      // one step's events
  std::vector<std::vector<Id>> event_of = {};  // [role][op]
  std::vector<OrderedOp> order = {};
  int max_offset = 0;
  std::vector<Id> role_of = {}, place_of = {};  // by rank: role, index in the role
  bool mailboxes = false;
};
/// A program that is proven to run and to mean one thing, with the memory that it needs. `link`
/// makes it.
struct LinkedProgram : OrderedProgram {
  std::uint64_t hash = 0;
  std::vector<RedundantWait> redundant = {};  // waits that other order already implies
  std::vector<RoleMemory> memory = {};        // by role
};

/// Throws ProgramError that prints the ops concerned and marks the wrong one.
LinkedProgram link(program::Program program);
/// For a search, which links in full only the few programs that it keeps. Every lane must be in
/// order. Races go unnoticed and LinkedOp::dies stays empty.
OrderedProgram order(program::Program program);
/// The same program without the waits that other order already implies.
program::Program without_redundant_waits(program::Program program);

}  // namespace rehearse::link
