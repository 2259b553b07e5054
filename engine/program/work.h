// What an op does: the channels it meets others on, and each kind of work. Part of program.h, which
// states the rules.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/program/storage.h"

namespace rehearse::program {

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
  rotate,
  gather,
  scatter
};
constexpr auto spellings(Move) {
  return std::to_array<const char*>({"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                     "reduce", "all_to_all", "rotate", "gather", "scatter"});
}
/// Whether only one member, the root, has the whole tensor, which has a part for each member.
constexpr bool parts_of_root(Move move) { return move == Move::gather || move == Move::scatter; }
/// Whether the move has a root.
constexpr bool has_root(Move move) {
  return move == Move::broadcast || move == Move::reduce || parts_of_root(move);
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
  drift,           // target = scale x (anchor - source): the same of what ranks have moved by.
                   // With a share, scale x share, and zero if that is zero
  in_time,         // target, one f32 = scale if the rank is not past the deadline of its round, 0
                   // if it is
  outer_step,  // SGD with Nesterov momentum by the gradient in source: outer_moment = momentum x
               // outer_moment + source; anchor -= scale x (source + momentum x outer_moment);
               // target = anchor. With a share and no outer_moment, the gradient is source / share,
               // momentum is 0, and a share of 0 leaves the anchor as it is
  mix,         // target = scale x (target + the sum of all sources)
  // A sum that shows no summand (SecureSum), in the order in which clients and server work. The
  // server's messages are those of all members, in their order; its own is empty.
  advertise,      // client: target = two public keys; begins a new sum
  relay_keys,     // server: target = for each client the keys of its neighbours
  share_secrets,  // client: the message has those keys; target = sealed shares for the neighbours
  relay_shares,   // server: target = for each client the shares for it
  mask,           // client: the message has those shares; target = levels of scale x source, and
                  // masks, those from number `of` of the client's on
  tell_stayed,    // server: source = a sum that all have added to; target = for each client which
                  // of its neighbours are in it
  open_shares,    // client: target = the shares that open the masks in the sum
  unmask,         // server: the message has those shares; target = what the levels in source add
                  // up to without masks, / scale; `of` as in mask
};
constexpr auto spellings(KernelKind) {
  return std::to_array<const char*>(
      {"measure",     "rescale",        "select",       "scatter_add", "cast",
       "observe",     "quantise",       "dequantise",   "momentum",    "draw",
       "project",     "orthonormalise", "project_back", "expand",      "weigh",
       "drift",       "in_time",        "outer_step",   "mix",         "advertise",
       "relay_keys",  "share_secrets",  "relay_shares", "mask",        "tell_stayed",
       "open_shares", "unmask"});
}
/// Whether the kernel is part of a secure sum.
constexpr bool sums_securely(KernelKind kind) { return kind >= KernelKind::advertise; }

/// Whether the kernel averages weights: all its operands but a share have equal elements, in fp32.
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
  double scale = 1;                     // measure, momentum, expand, weigh, drift, in_time, mix,
                                        // mask, unmask; outer_step: learning rate
  std::int64_t of = 0, keep = 0;        // a packet holds `keep` of `of` entries. draw, mask,
                                        // unmask: the first.
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
/// source -> target over the channel's group; in place when both name the same view. Of a move with
/// a root, that is the group's member that plays role `root`; none: the move has no root. In a
/// gather, the root's target is the members' sources in their order, and a scatter is the reverse;
/// the root's own part is not sent. In a rotate, each member sends its source to the member
/// `distance` places after it, in a circle.
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
/// The host issues the kernels of ops. Only predictions contain it
/// (engine/costs/device/host_lane.h): no method writes it, no program text contains it, and no real
/// rank runs it.
struct Issue {
  double seconds = 0;
};
using Work = std::variant<Compute, Kernel, Update, Collective, Send, Recv, Put, Take, Copy, Save,
                          Pause, Issue>;

template <class... F>
struct overloaded : F... {
  using F::operator()...;
};
template <class... F>
overloaded(F...) -> overloaded<F...>;

}  // namespace rehearse::program
