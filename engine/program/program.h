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
#include <variant>
#include <vector>

#include "engine/base/id.h"
#include "engine/base/narrow.h"

namespace rehearse::program {

/// A set of mesh axes: bit i stands for mesh[i]. Bits from mesh.size() up name irregular groups
/// (see Group).
using Axes = std::uint32_t;

enum class DType : std::uint8_t { f32, bf16, f16, i32, u8 };
constexpr auto spellings(DType) {
  return std::to_array<const char*>({"f32", "bf16", "f16", "i32", "u8"});
}
/// Bytes of one element.
constexpr std::int64_t size_of(DType t) {
  return t == DType::f32 || t == DType::i32 ? 4 : t == DType::u8 ? 1 : 2;
}

/// How long a storage lives. state: outlives steps and goes into checkpoints (weights, moments,
/// residuals). buffer: allocated once, its contents live within a step (a flat gradient). value:
/// allocated at its first write of a step and freed after its last use (activations).
enum class Life : std::uint8_t { state, buffer, value };
constexpr auto spellings(Life) { return std::to_array<const char*>({"state", "buffer", "value"}); }

/// Where the bytes of a storage are: in the memory of the rank's device, or in that of its host.
enum class Place : std::uint8_t { device, host };
constexpr auto spellings(Place) { return std::to_array<const char*>({"device", "host"}); }

/// How a tensor is distributed over the mesh: sharded over the axes in `shard`, a partial sum over
/// those in `partial`, whole and each rank's own over those in `own` (weights that ranks train
/// apart), equal copies over the rest. An all-reduce turns partial into copy, a reduce-scatter
/// partial into shard, an all-gather shard into copy. An all-to-all turns partial or shard into
/// shard: each rank then has all that the group has for its shard. A copy may be written as own. An
/// Update refuses partial, and a gradient that is own where its weights are copies. What an op
/// makes of own values is own or partial.
struct Layout {
  Axes shard = 0, partial = 0, own = 0;
  friend bool operator==(Layout, Layout) = default;
};

/// Memory of a rank; nothing else in a program occupies any. A storage has `indices` instances
/// within a step (micro-batches, copies of a gathered weight) times `versions` instances across
/// steps (2 for PipeDream-2BW's weights).
struct Storage {
  std::string name = {};
  Life life = Life::value;
  DType dtype = DType::f32;
  std::int64_t elements = 0;  // per rank and instance
  int indices = 1, versions = 1;
  Place place = Place::device;  // of others: Copy, Save, and updates that the host computes
};

/// The interval [begin, end) of a storage, in elements. Example: a bucket is one storage, and the
/// gradients of its parameter groups are views of it. Along the axes in `slice`, each rank has its
/// own equal part of the interval (a ZeRO shard of a bucket).
struct View {
  std::string name = {};
  Id storage = none;
  std::int64_t begin = 0, end = 0;
  Axes slice = 0;
};

/// add: read and write, that is, accumulate into the present value.
enum class Mode : std::uint8_t { read, write, add };

/// The part that a ref plays in its op. Executors find operands by slot, never by position or name.
enum class Slot : std::uint8_t {
  param,        // one per parameter group of the segment, in the segment's order
  grad,         // gradients of `param`, in the same order
  input,        // boundary activation that enters the segment, (samples, seq, hidden)
  output,       // boundary activation that leaves the segment, (samples, seq, hidden)
  saved,        // what forward keeps for backward
  grad_output,  // gradient of `output`
  grad_input,   // gradient of `input`
  stats,      // (tokens, 3) f32 of a vocabulary shard: running maximum, sum of exponentials, target
              // logit
  source,     // input of a collective, send, put or kernel
  target,     // result of a collective, receive, take or kernel
  moment1,    // Adam's first moment; SGD's momentum
  moment2,    // Adam's second moment
  master,     // fp32 copy of a 16-bit parameter
  norm,       // f32 scalar: sum of squares of gradients; not finite = overflow
  scale,      // f32 x 2: loss scale, steps since it last changed
  residual,   // error-feedback memory of a sparsifier or a quantiser
  threshold,  // f32 x 2: the limit of a threshold select, the number of entries that last passed it
  sum_residual,  // error-feedback memory of the quantiser of a sum
  left,          // the left factor of a matrix, its columns one after the other: rank x rows
  right,         // the right factor of a matrix: rank x columns
  anchor,        // fp32 copy of the weights that ranks last agreed on
  outer_moment,  // momentum of the optimizer of `anchor`
};
constexpr auto spellings(Slot) {
  return std::to_array<const char*>(
      {"param",      "grad",  "input",  "output",      "saved",     "grad_output",
       "grad_input", "stats", "source", "target",      "moment1",   "moment2",
       "master",     "norm",  "scale",  "residual",    "threshold", "sum_residual",
       "left",       "right", "anchor", "outer_moment"});
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

/// An operand of an op: a view, which instance and version of it, and how the op uses it.
struct Ref {
  Id view = none;
  Slot slot = Slot::source;
  Mode mode = Mode::read;
  Narrow<std::uint16_t, InstanceIndex> index = 0;
  Narrow<std::uint8_t, Age> age = 0;
  Layout layout = {};  // the layout that a read expects and a write produces
  friend bool operator==(const Ref&, const Ref&) = default;
};

/// Which ranks communicate. Without `colour`: the ranks that differ only along `axes`. With
/// `colour` (one per rank; none: in no group): the ranks of equal colour; `axes` is then one bit
/// beyond the mesh, by which layouts name the group.
struct Group {
  Axes axes = 0;
  std::vector<Id> colour = {};
};
/// sequence: the n-th op meets the n-th op of the others (NCCL, Gloo). mailbox: messages are taken
/// in order of arrival (parameter servers).
enum class Match : std::uint8_t { sequence, mailbox };
constexpr auto spellings(Match) { return std::to_array<const char*>({"sequence", "mailbox"}); }

/// Like an NCCL communicator. There is one channel per group, direction and kind of payload, so
/// transfers of equal size never pair by accident.
struct Channel {
  std::string name = {};
  Group group = {};  // empty for point-to-point channels: their ops name a peer role
  Match match = Match::sequence;
};

/// backward_input and backward_weight are the two halves of backward (Qi et al., Zero Bubble
/// Pipeline Parallelism, ICLR 2024): what the stage before waits for, and the gradients of
/// matrices, which nothing waits for but the update.
enum class Pass : std::uint8_t { forward, backward, recompute, backward_input, backward_weight };
constexpr auto spellings(Pass) {
  return std::to_array<const char*>(
      {"forward", "backward", "recompute", "backward_input", "backward_weight"});
}
/// Whether the pass computes gradients.
constexpr bool is_backward(Pass pass) { return pass != Pass::forward && pass != Pass::recompute; }
enum class Move : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  all_to_all,
  rotate
};
constexpr auto spellings(Move) {
  return std::to_array<const char*>({"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                     "reduce", "all_to_all", "rotate"});
}
enum class Algorithm : std::uint8_t {
  automatic,
  ring,
  double_tree,
  halving_doubling,
  hierarchical,
  direct,
  nvls,
  in_network
};
constexpr auto spellings(Algorithm) {
  return std::to_array<const char*>({"automatic", "ring", "double_tree", "halving_doubling",
                                     "hierarchical", "direct", "nvls", "in_network"});
}
/// Which entries a select keeps. top_k: those of the largest magnitude; of equal ones, the lower
/// index. random_k: `keep` entries drawn anew each step, the same on every rank. threshold: those
/// that reach a threshold. The threshold is adapted each step to keep about `keep` entries, so
/// their number varies.
enum class Selector : std::uint8_t { top_k, random_k, threshold };
constexpr auto spellings(Selector) {
  return std::to_array<const char*>({"top_k", "random_k", "threshold"});
}
/// What happens to entries that a select does not send (Sun 2026, eq. 4 and 5). conserving: they
/// stay in the residual, which is added to the next gradient. printed: the same, but the residual
/// loses a tenth each step, e' = g - sent + 0.9 e, and is cleared every 1000 steps. literal: the
/// select looks at the gradient alone, so the residual is never sent.
enum class Feedback : std::uint8_t { conserving, printed, literal };
constexpr auto spellings(Feedback) {
  return std::to_array<const char*>({"conserving", "printed", "literal"});
}
/// How a packet encodes which entries it holds (pictures in packets.h). index32: 32 bits per entry
/// held. bitmap: one bit per entry of the gradient. delta16: 16 bits per entry held, an offset in
/// its block of 65,536 entries, and a 32-bit count per block. values: nothing; only of random_k,
/// whose draws every rank can repeat.
enum class Coding : std::uint8_t { index32, bitmap, delta16, values };
constexpr auto spellings(Coding) {
  return std::to_array<const char*>({"index32", "bitmap", "delta16", "values"});
}
/// How a quantise makes codes of entries v; the entries of a block share a scale, and a code c
/// stands for c x scale. int8: scale = largest |v| / 127, c = v / scale rounded to nearest.
/// stochastic: scale = ||v||_2 / s, c = v / scale rounded up or down at random so that its mean is
/// v / scale; s = 2^(bits - 1) - 1 levels (Alistarh et al., NeurIPS 2017). sign: scale = ||v||_1 /
/// entries, c = -1 or 1 (Karimireddy et al., ICML 2019). sign_rms: the same with scale = ||v||_2 /
/// sqrt(entries) (Tang et al., ICML 2021). vote: c = -1 or 1, without a scale (Bernstein et al.,
/// ICLR 2019).
enum class Compressor : std::uint8_t { int8, stochastic, sign, sign_rms, vote };
constexpr auto spellings(Compressor) {
  return std::to_array<const char*>({"int8", "stochastic", "sign", "sign_rms", "vote"});
}
enum class KernelKind : std::uint8_t {
  measure,  // target (=|+=) Kernel::scale x the sum of squares of all sources
  rescale,  // dynamic loss scaling: reads norm, updates scale (overflow: halve; 2000 good steps:
            // double)
  select,   // target = a packet of `keep` of the `of` entries of source / scale + residual;
            // residual = what is not sent. If norm is not finite: target = a packet of zeros, and
            // the residual stays
  scatter_add,  // target (or this rank's shard of it) = scale x the sum of the packets that were
                // gathered into source, in their order
  cast,         // target (=|+=) source, converted to target's dtype; `keep` and `stride` as in
                // docs/program.md
  observe,   // updates target by every `stride`-th entry of source / scale: Welford's running mean
             // and sum of squared deviations, f32 (number of observations, means, sums)
  quantise,  // target = packets of codes for source + residual, `keep` entries each; residual =
             // what the codes miss. A block with an entry that is not finite is sent as NaN, and
             // its residual is cleared. Without a residual, what the codes miss is lost
  dequantise,  // target = the entries of source's packets side by side; of a shard, their sum
  momentum,    // target = (1 - beta1) x target + beta1 x scale x moment1: with scale 1 / n, a
               // rank's part of the sum over n ranks that is the next first moment
  // Factors of a matrix M (rows x columns in row-major order) of rank Kernel::rank, left P and
  // right Q (Vogels et al., NeurIPS 2019, algorithm 1). With a residual, M is source + residual,
  // and the residual becomes M.
  draw,            // target = numbers of a normal distribution, drawn anew each step, the same on
                   // every rank; target is entries [of, of + elements) of all that a step draws
  project,         // left = M right
  orthonormalise,  // the columns of left become orthonormal (Gram-Schmidt)
  project_back,    // right = M^T left, with source = M
  expand,          // target = left right^T; residual -= scale x target
  weigh,           // target = scale x source: the rank's part of a weighted mean
  drift,           // target = scale x (anchor - source): the same of what ranks have moved by
  outer_step,  // SGD with Nesterov momentum by the gradient in source: outer_moment = momentum x
               // outer_moment + source; anchor -= scale x (source + momentum x outer_moment);
               // target = anchor
  mix,         // target = scale x (target + the sum of all sources)
};
constexpr auto spellings(KernelKind) {
  return std::to_array<const char*>({"measure", "rescale", "select", "scatter_add", "cast",
                                     "observe", "quantise", "dequantise", "momentum", "draw",
                                     "project", "orthonormalise", "project_back", "expand", "weigh",
                                     "drift", "outer_step", "mix"});
}

/// Whether the kernel averages weights: all its operands have equal elements, in fp32.
constexpr bool averages(KernelKind kind) {
  return kind == KernelKind::weigh || kind == KernelKind::drift || kind == KernelKind::outer_step ||
         kind == KernelKind::mix;
}

/// How the ranks of an axis divide a sequence (context parallelism). contiguous: rank i of n has
/// the i-th of n parts. zigzag: it has parts i and 2n - 1 - i of 2n, in this order, so that causal
/// attention is the same work for all.
enum class Cut : std::uint8_t { contiguous, zigzag };
constexpr auto spellings(Cut) { return std::to_array<const char*>({"contiguous", "zigzag"}); }
/// Which part of a segment a pass computes. Attention over a divided sequence has three parts, with
/// transfers between them: projection to queries, keys and values; attention of this rank's queries
/// to one block of keys and values; output product with residual. Backward has them the other way
/// round, and its part `project` computes the gradients of all parameters.
enum class Part : std::uint8_t { whole, project, attend, output };
constexpr auto spellings(Part) {
  return std::to_array<const char*>({"whole", "project", "attend", "output"});
}

/// One pass of one model segment over one micro-batch. Operands by slot:
///   forward:    param, input -> output, saved               (head: param, input -> stats, saved)
///   recompute:  param, input -> saved
///   backward:   param, saved, grad_output -> grad_input, grad     (head: stats for grad_output)
/// The embedding reads tokens and has no input and no grad_input. The head also reads labels.
/// Operands of the parts of an attention segment, where kv is a block of keys and values, and d a
/// gradient:
///   forward:    project  param, input -> saved, kv (target)
///               attend   kv (source), saved (add)
///               output   param, input, saved -> output
///   backward:   output   param, grad_output -> d of attention's output (target)
///               attend   kv (source), d of attention's output (grad_output), saved
///                        -> dq (grad_input), d kv (target)
///               project  param, input, saved, grad_output, dq and d kv (source) -> grad_input,
///               grad
/// Without a block, `attend` works on all tokens of some heads (docs/program.md).
struct Compute {
  Id segment = none;  // into ModelSpec::segments
  Pass pass = Pass::forward;
  int samples = 0, microbatch = 0;
  Part part = Part::whole;
  Id block = none;  // of parts: the place along the axis cp of the rank whose keys and values these
                    // are; none: all ranks exchange heads for tokens
};
struct Kernel {
  KernelKind kind = KernelKind::measure;
  double scale = 1;                     // measure, momentum, expand, weigh, drift, mix;
                                        // outer_step: learning rate
  std::int64_t of = 0, keep = 0;        // a packet holds `keep` of `of` entries. draw: the first.
                                        // cast: takes the first `keep` of every `stride` entries
  Selector selector = Selector::top_k;  // select, scatter_add
  Feedback feedback = Feedback::conserving;  // select
  Coding coding = Coding::index32;           // select, scatter_add
  Id draw = 0;                               // of random_k: equal numbers draw equal entries
  int stride = 1;                            // observe, cast
  Compressor compressor = Compressor::int8;  // quantise, dequantise
  int bits = 8;                              // of a code: 1, 2, 4 or 8
  std::int64_t block = 0;                    // entries that share a scale
  int rank = 0;                              // project, orthonormalise, project_back, expand
  double momentum = 0;                       // outer_step
};
/// One optimizer step on a flat interval: param (write), grad (read), moment1/2 and master (add),
/// norm (read, when clipping or fp16). Every rank runs it in every step. When norm is not finite,
/// it changes nothing. From step `frozen` on (0: never), grad is the new first moment, which
/// replaces moment1, and moment2 stays as the step before left it, with its bias correction (1-bit
/// Adam). Before every step that `restart` divides (0: none), the optimizer begins anew: its
/// moments are zero, and bias corrections count from there (the clients of FedAvg).
struct Update {
  int frozen = 0;
  int restart = 0;
};
/// source -> target over the channel's group; in place when both name the same view. For reduce and
/// broadcast, the root is the group's member that plays role `root`; none: the move has no root. In
/// a rotate, each member sends its source to the member `distance` places after it, in a circle.
struct Collective {
  Id channel = none;
  Move move = Move::all_reduce;
  Algorithm algorithm = Algorithm::automatic;
  Id root = none;
  int distance = 0;
};
struct Send {
  Id channel = none, peer = none;  // peer: a role
};
struct Recv {
  Id channel = none, peer = none;
};
/// Sends to a mailbox and never waits for the receiver. `peer` is a role. With `reply` (none: no
/// reply), the message goes to the sender of the message that the last Take on the channel `reply`
/// delivered.
struct Put {
  Id channel = none, peer = none, reply = none;
};
/// Takes from a mailbox the next message that arrives on the channel for this rank, from any
/// sender.
struct Take {
  Id channel = none;
};
/// Where a checkpoint is written: the file system that all nodes share, each node's own disk, the
/// memory of its host, or that and the memory of the other nodes of a group.
enum class Medium : std::uint8_t { shared_disk, local_disk, memory, peers };
constexpr auto spellings(Medium) {
  return std::to_array<const char*>({"shared_disk", "local_disk", "memory", "peers"});
}
/// source -> target, which are of equal type and size and may be in different places: a snapshot of
/// weights in host memory.
struct Copy {};
/// Writes all sources to the checkpoint after this step. The checkpoint is complete when every rank
/// has written its part.
struct Save {
  Medium to = Medium::shared_disk;
  int group = 1;  // peers: nodes that hold each other's parts
};
/// Lets time pass on its lane (the cycle of Horovod's coordinator). It reads its sources, a few
/// bytes that others have sent, and sets its targets, a message to others, to zero.
struct Pause {
  double seconds = 0;
};
/// The host issues the kernels of ops. Only predictions contain it (engine/costs/host_lane.h): no
/// method writes it, no program text contains it, and no real rank runs it.
struct Issue {
  double seconds = 0;
};
using Work = std::variant<Compute, Kernel, Update, Collective, Send, Recv, Put, Take, Copy, Save,
                          Pause, Issue>;

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
};
struct Axis {
  std::string name = {};
  int size = 1;
  Cut cut = Cut::contiguous;  // of the axis cp
};
struct Program {
  std::string method = {};
  std::vector<Axis> mesh = {};  // outermost axis first; a rank is a row-major index; ranks beyond
                                // the mesh have extra roles (servers)
  int world_size = 1;
  bool fp8 = false;  // passes compute the linear layers of blocks in FP8 (engine/model/fp8.h)
  std::vector<Channel> channels = {};
  std::vector<Role> roles = {};
};

template <class... F>
struct overloaded : F... {
  using F::operator()...;
};
template <class... F>
overloaded(F...) -> overloaded<F...>;

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
