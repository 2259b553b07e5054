// The program: what one step of training is, said once for every executor. For each role (a
// pipeline stage, a parameter server) it lists ops on lanes that read and write named views of
// storages. Semantics are those of CUDA streams: an op starts when its predecessor on its lane and
// everything in its `after` have finished; a rendezvous (a collective, or a send with its receive)
// starts when all its ops may. The op list is one iteration and is repeated, with no barrier
// between iterations.
//
// Conventions that all executors share
//
// - A role is played by `ranks`; the i-th rank of a role meets the i-th rank of a peer role.
// - Order in `Role::ops` is the order in which a host issues the ops, and the sequential meaning
//   of the program: a read sees the last write before it in this order (age 0), or the version of
//   an earlier step (age >= 1).
// - A write at step t makes version t of a storage. `age` a reads version t - a: forward reads
//   weights with age 1 (written by the last step's Update), an Update reads age 1 and writes age 0.
//   Versions before the first step hold the initial value. A storage with V versions keeps version
//   t in slot t mod V.
// - `shift` s: in iteration i the op serves step i - s (software pipelining); steps below 0 and
//   beyond the last are skipped.
// - Mode::add with age 0 accumulates into what this step has written; with age a >= 1 it reads
//   version t - a and writes version t (an optimizer's moments).
// - A parameter or gradient view may be longer than its group: the rest is padding that makes
//   shards equal, zero in gradients (whoever writes the view clears it).
// - A rendezvous starts when all its ops may, but a rank may read and write its operands as soon as
//   it has issued its own op: only an op's own waits protect them.
// - The n-th op of a step on a channel meets the n-th op of that step in every other member;
//   point-to-point channels count per pair of roles. A member of a reduction without a source
//   contributes nothing.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/id.h"
#include "engine/base/narrow.h"

namespace rehearse::program {

using Axes = std::uint32_t;  // a set of mesh axes, bit i = mesh[i]; bits from mesh.size() up name
                             // irregular groups

enum class DType : std::uint8_t { f32, bf16, f16, i32, u8 };
constexpr auto spellings(DType) {
  return std::to_array<const char*>({"f32", "bf16", "f16", "i32", "u8"});
}
constexpr std::int64_t size_of(DType t) {
  return t == DType::f32 || t == DType::i32 ? 4 : t == DType::u8 ? 1 : 2;
}

/// state: outlives steps and goes into checkpoints (weights, moments, residuals). buffer: allocated
/// once, contents live within a step (a flat gradient). value: allocated at its first write of a
/// step and freed after its last use (activations).
enum class Life : std::uint8_t { state, buffer, value };
constexpr auto spellings(Life) { return std::to_array<const char*>({"state", "buffer", "value"}); }

/// How a tensor lies over a mesh, as a type: sharded over some axes, a partial sum over others,
/// equal copies over the rest. All-reduce: partial -> copy; reduce-scatter: partial -> shard;
/// all-gather: shard -> copy; Update refuses partial.
struct Layout {
  Axes shard = 0, partial = 0;
  friend bool operator==(Layout, Layout) = default;
};

/// The only thing that occupies bytes. `indices`: instances within a step (micro-batches,
/// materialisations of a gathered weight); `versions`: instances across steps (2 for
/// PipeDream-2BW's weights).
struct Storage {
  std::string name = {};
  Life life = Life::value;
  DType dtype = DType::f32;
  std::int64_t elements = 0;  // per rank and instance
  int indices = 1, versions = 1;
};

/// A named interval of a storage, in elements: a bucket is one storage, the gradients of its
/// parameter groups are views of it. `slice`: each rank along these axes has its own equal part of
/// the interval (a ZeRO shard of a bucket).
struct View {
  std::string name = {};
  Id storage = none;
  std::int64_t begin = 0, end = 0;
  Axes slice = 0;
};

enum class Mode : std::uint8_t {
  read,
  write,
  add
};  // add = read and write: accumulate into what is there

/// What a ref is to its op. Executors find operands by slot, never by position or name.
enum class Slot : std::uint8_t {
  param,        // one per parameter group of the segment, in the segment's order
  grad,         // the same order
  input,        // boundary activation (samples x seq x hidden) entering the segment
  output,       // ... leaving it
  saved,        // what forward keeps for backward
  grad_output,  // gradient of `output`
  grad_input,   // gradient of `input`
  stats,  // per token: running maximum, sum of exponentials, target logit (f32 x 3) of a vocabulary
          // shard
  source,     // payload of a collective, send, put, kernel
  target,     // result of a collective, receive, take, kernel
  moment1,    // Adam's first moment; SGD's momentum
  moment2,    // Adam's second moment
  master,     // fp32 copy of a 16-bit parameter
  norm,       // f32 scalar: sum of squares of gradients; not finite = overflow
  scale,      // f32 x 2: loss scale, steps since it last changed
  residual,   // error-feedback memory of a sparsifier
  threshold,  // f32 x 2: what a threshold select compares with, how many entries passed it last
};
constexpr auto spellings(Slot) {
  return std::to_array<const char*>(
      {"param", "grad", "input", "output", "saved", "grad_output", "grad_input", "stats", "source",
       "target", "moment1", "moment2", "master", "norm", "scale", "residual", "threshold"});
}

struct InstanceIndex {
  static constexpr const char* name = "the index of an instance (a micro-batch, say)";
};
struct Age {
  static constexpr const char* name = "an age";
};
struct Lag {
  static constexpr const char* name = "the lag of a wait";
};
struct Shift {
  static constexpr const char* name = "a shift";
};

struct Ref {
  Id view = none;
  Slot slot = Slot::source;
  Mode mode = Mode::read;
  Narrow<std::uint16_t, InstanceIndex> index = 0;
  Narrow<std::uint8_t, Age> age = 0;
  Layout layout = {};  // expected of a read; produced by a write
  friend bool operator==(const Ref&, const Ref&) = default;
};

/// Who talks: the ranks that differ only along `axes`; or, when `colour` is given (one per rank,
/// none = not a member), the ranks of one colour, `axes` then being a bit of its own so that
/// layouts can name the group.
struct Group {
  Axes axes = 0;
  std::vector<Id> colour = {};
};
enum class Match : std::uint8_t {
  sequence,
  mailbox
};  // n-th meets n-th (NCCL, Gloo); or whoever arrives (servers)
constexpr auto spellings(Match) { return std::to_array<const char*>({"sequence", "mailbox"}); }

/// One per group, direction and kind of payload, so that equal sizes never pair by accident.
struct Channel {
  std::string name = {};
  Group group = {};  // empty for point-to-point channels: peers are named by role
  Match match = Match::sequence;
};

enum class Pass : std::uint8_t { forward, backward, recompute };
constexpr auto spellings(Pass) {
  return std::to_array<const char*>({"forward", "backward", "recompute"});
}
enum class Move : std::uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, reduce };
constexpr auto spellings(Move) {
  return std::to_array<const char*>(
      {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"});
}
enum class Algorithm : std::uint8_t {
  automatic,
  ring,
  double_tree,
  halving_doubling,
  hierarchical,
  direct
};
constexpr auto spellings(Algorithm) {
  return std::to_array<const char*>(
      {"automatic", "ring", "double_tree", "halving_doubling", "hierarchical", "direct"});
}
/// What a select keeps: the largest magnitudes (equal ones: the lower index first); as many entries
/// drawn anew each step, the same on every rank; or what exceeds a threshold that follows the
/// wanted number from step to step, so that the number varies.
enum class Selector : std::uint8_t { top_k, random_k, threshold };
constexpr auto spellings(Selector) {
  return std::to_array<const char*>({"top_k", "random_k", "threshold"});
}
/// What becomes of entries that a select does not send (Sun 2026, eq. 4 and 5). conserving: they
/// stay in the residual, which is added to the next gradient. printed: the same, but the residual
/// loses a tenth each step, e' = g - sent + 0.9 e, and is cleared every 1000. literal: choices are
/// made of the gradient alone, so that the residual is never sent.
enum class Feedback : std::uint8_t { conserving, printed, literal };
constexpr auto spellings(Feedback) {
  return std::to_array<const char*>({"conserving", "printed", "literal"});
}
/// How a packet says which entries it holds: 32 bits each; one bit for every entry there is; 16
/// bits each, counted from the start of their block of 65,536, and a 32-bit count a block.
enum class Coding : std::uint8_t { index32, bitmap, delta16 };
constexpr auto spellings(Coding) {
  return std::to_array<const char*>({"index32", "bitmap", "delta16"});
}
enum class KernelKind : std::uint8_t {
  measure,  // target(norm) (=|+=) scale * sum of squares of every source
  rescale,  // dynamic loss scaling: reads norm, updates scale (overflow: halve; 2000 good steps:
            // double)
  select,  // target = a packet of `keep` of the `of` entries of source / scale + residual; residual
           // = what is not sent. Where norm is not finite: a packet of zeros, residual as it was
  scatter_add,  // target (or the part of it that is this rank's) = scale x the sum of the packets
                // that were gathered into source, in their order
  cast,         // target (=|+=) source, which may have another dtype
  observe,      // target += source's every `stride`-th entry, as Welford's running mean and sum of
                // squared deviations: f32 (number of observations, means, sums)
};
constexpr auto spellings(KernelKind) {
  return std::to_array<const char*>(
      {"measure", "rescale", "select", "scatter_add", "cast", "observe"});
}

/// One pass of one model segment over one micro-batch. forward: param, input -> output, saved (the
/// head: stats, saved). recompute: param, input -> saved. backward: param, saved, grad_output (the
/// head: stats) -> grad_input, grad. The embedding has no input and no grad_input: it reads tokens;
/// the head reads labels.
struct Compute {
  Id segment = none;  // into ModelSpec::segments
  Pass pass = Pass::forward;
  int samples = 0, microbatch = 0;
};
struct Kernel {
  KernelKind kind = KernelKind::measure;
  double scale = 1;               // measure
  std::int64_t of = 0, keep = 0;  // select, scatter_add: a packet holds `keep` of `of` entries
  Selector selector = Selector::top_k;       // select, scatter_add: threshold = keep varies
  Feedback feedback = Feedback::conserving;  // select
  Coding coding = Coding::index32;           // select, scatter_add
  int stride = 1;                            // observe
};
/// One optimizer step on a flat interval: param (write), grad (read), moment1/2 and master (add),
/// norm (read, when clipping or fp16). Always runs; when norm is not finite it leaves everything as
/// it was, so every rank issues the same ops.
struct Update {};
/// source -> target over the channel's group; in place when both name the same view. reduce and
/// broadcast have a root: the group's member that plays role `root`.
struct Collective {
  Id channel = none;
  Move move = Move::all_reduce;
  Algorithm algorithm = Algorithm::automatic;
  Id root = none;
};
struct Send {
  Id channel = none, peer = none;  // peer: a role
};
struct Recv {
  Id channel = none, peer = none;
};
/// Mailbox: never blocks on the receiver. `peer` is a role; with `reply` it goes to the rank whose
/// message the last Take on the channel `reply` of this role delivered.
struct Put {
  Id channel = none, peer = none, reply = none;
};
/// Mailbox: the next message that arrives on the channel for this rank, whoever sent it.
struct Take {
  Id channel = none;
};
using Work = std::variant<Compute, Kernel, Update, Collective, Send, Recv, Put, Take>;

/// The instance of `op` that serves step - lag. `throttle`: orders no data, it only keeps a lane
/// from running too far ahead (a receive or a prefetch that would otherwise occupy memory early).
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
};
enum class Order : std::uint8_t { in_order, arrival };
constexpr auto spellings(Order) { return std::to_array<const char*>({"in_order", "arrival"}); }
struct Lane {
  std::string name = {};
  Order order = Order::in_order;
};
/// free_running: the role counts its own iterations and stops when the others have finished
/// (asynchronous workers).
struct Role {
  std::string name = {};
  std::vector<Id> ranks = {};
  std::vector<Lane> lanes = {};
  std::vector<Storage> storages = {};
  std::vector<View> views = {};
  std::vector<Op> ops = {};
  bool free_running = false;
};
struct Axis {
  std::string name = {};
  int size = 1;
};
struct Program {
  std::string method = {};
  std::vector<Axis> mesh = {};  // outermost first: rank = row-major index; ranks beyond the mesh
                                // play extra roles (servers)
  int world_size = 1;
  std::vector<Channel> channels = {};
  std::vector<Role> roles = {};
};

template <class... F>
struct overloaded : F... {
  using F::operator()...;
};
template <class... F>
overloaded(F...) -> overloaded<F...>;

/// Readable, versioned text; `parse_program` is its exact inverse and throws ProgramError with the
/// line on malformed text.
std::string to_text(const Program& program);
Program parse_program(const std::string& text);
/// Of the text: every rank compares it before the first step.
std::uint64_t hash_of(const Program& program);

/// Elements that a ref touches on one rank (a sliced view: its part).
std::int64_t elements_of(const Program& program, const Role& role, const Ref& ref);
std::int64_t bytes_of(const Program& program, const Role& role, const Ref& ref);
/// Number of ranks that differ along `axes` (regular axes only).
int size_of(const Program& program, Axes axes);
/// The members of each group of a channel, in rank order; a rank's place in its group is its
/// position here.
std::vector<std::vector<Id>> groups_of(const Program& program, const Channel& channel);
/// The same by rank, for a flat pass: which group of the channel a rank is in, none = in none.
struct GroupOfRank {
  std::vector<Id> of = {};
  Id groups = 0;
};
GroupOfRank group_of_rank(const Program& program, const Channel& channel);
const Ref* find(const Op& op, Slot slot);
/// The channel of a communicating op, none for local ones.
Id channel_of(const Work& work);
/// Entries of `elements` that an observe kernel looks at: the first and every stride-th after it.
constexpr std::int64_t observed_entries(std::int64_t elements, int stride) {
  return (elements + stride - 1) / stride;
}
/// One op as a line of text, as in to_text.
std::string to_text(const Program& program, const Role& role, Id op);

}  // namespace rehearse::program
