// The program: one training step as data. Every executor (dry run, simulator, runtime) runs the
// same program. For each role (a pipeline stage, a parameter server) it lists ops on lanes; ops
// read and write named views of storages. The rules are those of CUDA streams: an op starts when
// the op before it on its lane and all ops in its `after` have ended. A rendezvous (a collective,
// or a send with its receive) starts when all its ops may start. Executors repeat the op list, one
// iteration after the other, without a barrier in between.
//
// Conventions that all executors share
//
// - `Role::ranks` lists the ranks of a role. The i-th rank of a role communicates with the i-th
//   rank of a peer role.
// - `Role::ops` is in the order in which the host issues the ops. A read with age 0 sees the last
//   write before it in this order; a read with age >= 1 sees the version of an earlier step.
// - A write at step t makes version t of a storage, and a read with age a at step t reads version
//   t - a. Versions before the first step hold the initial value. A storage with V versions keeps
//   version t in slot t mod V. Weights W with an Update:
//
//     step 1: forward reads W@1 = v0     step 2: forward reads W@1 = v1
//             Update  reads W@1 = v0             Update  reads W@1 = v1
//                     writes W  = v1                     writes W  = v2
//
// - With `shift` s, the op serves step i - s in iteration i (software pipelining). Steps below 0
//   and beyond the last one are skipped.
// - Mode::add with age 0 accumulates into what this step has written. With age a >= 1 it reads
//   version t - a and writes version t (an optimizer's moments).
// - A parameter or gradient view may be longer than its parameter group. The rest is padding that
//   makes shards equal; in gradients it is zero (the op that writes the view clears it).
// - A rank may read and write the operands of a rendezvous as soon as it has issued its own op,
//   before the other ranks arrive. So only the op's own waits protect its operands.
// - The n-th op of a step on a channel meets the n-th op of that step of every other member;
//   point-to-point channels count separately for each pair of roles. A member of a reduction that
//   has no source contributes zero.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/program/work.h"

namespace rehearse::program {

/// The steps in which an op works: those from `from` on and before `until` (0: without end), and of
/// these every so many-th. In other steps it takes no time and does nothing.
struct When {
  int every = 1, from = 0, until = 0;
  /// Whether the op works in this step (from 0).
  constexpr bool due(std::int64_t step) const {
    return step >= from && (until == 0 || step < until) && (every == 1 || (step + 1) % every == 0);
  }
  friend bool operator==(const When&, const When&) = default;
};

/// A wait for the instance of `op` that serves step - lag. A `throttle` protects no data. It only
/// keeps a lane from running too far ahead (a receive or prefetch that would occupy memory early).
struct After {
  Id op = none;
  Narrow<std::uint8_t, Lag> lag = 0;
  bool throttle = false;
  friend bool operator==(After, After) = default;
};
struct Op {
  Id lane = none;
  Work work = {};
  std::vector<Ref> refs = {};
  std::vector<After> after = {};
  Narrow<std::uint8_t, Shift> shift = 0;
  When when = {};
};
/// in_order: the ops of the lane run in program order. arrival: in the order in which they become
/// ready.
enum class Order : std::uint8_t { in_order, arrival };
constexpr auto spellings(Order) { return std::to_array<const char*>({"in_order", "arrival"}); }
struct Lane {
  std::string name = {};
  Order order = Order::in_order;
};
/// Rounds of steps with a deadline (the clients of FedAvg). A round begins with every `steps`-th
/// step (0: the role has no rounds). A rank that would begin a step more than `deadline` seconds
/// after its round began gives up: until the next round, its passes, kernels and updates that work
/// in every step do nothing. The kernel `in_time` says what such a rank counts.
struct Round {
  int steps = 0;
  double deadline = 0;
};
/// All ranks that do the same work. A free_running role counts its own iterations and stops when
/// the other roles have finished (asynchronous training).
struct Role {
  std::string name = {};
  std::vector<Id> ranks = {};
  std::vector<Lane> lanes = {};
  std::vector<Storage> storages = {};
  std::vector<View> views = {};
  std::vector<Op> ops = {};
  bool free_running = false;
  Round round = {};
};
struct Axis {
  std::string name = {};
  int size = 1;
  Cut cut = Cut::contiguous;  // of the axis cp
};
/// How clients and their server sum in secret (secure::Settings says what the numbers mean).
struct SecureSum {
  int neighbours = 0, threshold = 0;  // 0 neighbours: the program has no such sum
  double range = 0;                   // numbers are clipped to it
  std::uint32_t levels = 0;
  friend bool operator==(const SecureSum&, const SecureSum&) = default;
};
struct Program {
  std::string method = {};
  std::vector<Axis> mesh = {};  // outermost axis first; a rank is a row-major index; ranks beyond
                                // the mesh have extra roles (servers)
  int world_size = 1;
  bool fp8 = false;  // passes compute the linear layers of blocks in FP8 (engine/model/fp8.h)
  SecureSum secure = {};
  std::vector<Channel> channels = {};
  std::vector<Role> roles = {};
};

/// The program as versioned text. `parse_program` is its exact inverse, and throws ProgramError
/// that quotes the line when the text is malformed.
std::string to_text(const Program& program);
Program parse_program(const std::string& text);
/// FNV-1a hash of the text. All ranks compare it before the first step.
std::uint64_t hash_of(const Program& program);

/// Elements (bytes) that a ref touches on one rank; of a sliced view, one rank's part.
std::int64_t elements_of(const Program& program, const Role& role, const Ref& ref);
std::int64_t bytes_of(const Program& program, const Role& role, const Ref& ref);
/// Gradients that a backward pass computes in the type of its parameters and adds to storages of
/// another type (fp32 gradients under 16-bit weights).
struct ConvertedGradients {
  int groups = 0;
  std::int64_t elements = 0, largest = 0;  // of all groups together; of the largest
};
ConvertedGradients converted_gradients(const Program& program, const Role& role, const Op& op);
/// The number of ranks in a group whose members differ along `axes`; ignores bits beyond the mesh.
int size_of(const Program& program, Axes axes);
/// The mesh axis of that name; 0: there is none, or its size is 1.
Axes axis_named(const Program& program, const std::string& name);
/// The axes along which ranks train on different samples: dp, or where shard groups divide the
/// data-parallel ranks, replicate and shard.
Axes data_axes(const Program& program);
/// The axes over which gradients are summed: those along which ranks train on different samples,
/// and cp, along which they have different tokens of the same samples.
Axes gradient_axes(const Program& program);
/// How the axis cp divides sequences; contiguous where there is none.
Cut cut_of(const Program& program);
/// The members of each group of a channel, in rank order. A rank's place in its group is its
/// position in this list.
std::vector<std::vector<Id>> groups_of(const Program& program, const Channel& channel);
/// The same by rank: of[rank] is the group of the channel that the rank is in; none: in no group.
struct GroupOfRank {
  std::vector<Id> of = {};
  Id groups = 0;
};
GroupOfRank group_of_rank(const Program& program, const Channel& channel);
/// Where an op computes: an update or a norm (measure) where its gradient is, others on the device.
Place place_of(const Role& role, const Op& op);
/// The type in which an op computes: that of its parameters; of a pass without any, of its source;
/// f32 without both.
DType dtype_of(const Role& role, const Op& op);
/// The first ref of `op` with this slot; nullptr when there is none.
const Ref* find(const Op& op, Slot slot);
/// The channel of a communication op; none for local ops.
Id channel_of(const Work& work);
/// How many of `elements` entries an observe kernel reads: the first and every stride-th after it.
constexpr std::int64_t observed_entries(std::int64_t elements, int stride) {
  return (elements + stride - 1) / stride;
}
/// One op as a line of the program's text.
std::string to_text(const Program& program, const Role& role, Id op);

}  // namespace rehearse::program
