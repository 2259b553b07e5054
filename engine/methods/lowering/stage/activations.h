// The storages of a stage whose sizes depend on its number of samples: activations at the
// boundaries between segments, their gradients, and what forward saves for backward. Replicas with
// different numbers of samples differ only in these.
//
// Shapes: B samples of a micro-batch, T tokens of a sample, H hidden; tp as in the plan.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/methods/lowering/roles.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/program/role_builder.h"

namespace rehearse::methods {

/// A tensor (B, T, H) at the boundary below a segment; where sequence parallelism splits it, this
/// rank's part (B, T / tp, H).
enum class Boundary : std::uint8_t {
  input,           // x: the segment's input
  partial_output,  // y: the output of the segment before, before its reduce-scatter
  grad,            // dx: the gradient of `input`
  partial_grad,    // dy: the gradient of `input`, before its reduce-scatter
  gathered_input,  // xg: `input` gathered along the sequence
  gathered_grad,   // dxg: `grad` gathered along the sequence
  again,           // xr: `input` as recomputed by layers
  partial_again,   // yr: `again` before its reduce-scatter
  gathered_again,  // xrg: `again` gathered along the sequence
};

/// What the parts of attention over a divided sequence exchange. T is the tokens of a rank, Q and K
/// the elements of all queries and keys of a token on one tensor rank.
enum class Exchanged : std::uint8_t {
  kv,            // kv: keys and values of this rank's tokens, (B T, 2 K)
  qkv,           // qkv: queries, keys and values of its tokens, by the rank that gets them
  heads,         // qkvh: those of all tokens for some heads, by the rank that sent them
  output_heads,  // ah: attention's output for these heads, by the rank that gets it
  output,        // a: attention's output for its tokens, by the rank that sent it
  grad,          // da: gradient of attention's output for its tokens
  grad_heads,    // dah: the same for its heads
  grad_qkvh,     // dqkvh: gradients of queries, keys and values for its heads
  grad_qkv,      // dqkv: the same for its tokens; of rings (B T, Q), then (B T, 2 K)
  ring_kv,       // ring.kv: keys and values of another rank's tokens
  ring_grad,     // ring.dkv: the sum of their gradients so far
  ring_part,     // ring.part: this rank's part of these gradients
};

class Activations {
 public:
  /// The arguments must outlive this object.
  Activations(program::RoleBuilder& role, const plan::Plan& plan, const model::ModelSpec& model,
              const StageRole& who);

  /// Says that backwards have two halves; comes before anything is asked for.
  void expect_halves() { split_.halves = true; }
  /// The view of a boundary tensor, with one instance per micro-batch. `shard`: (B, T / tp, H).
  /// `per_pass`: two instances per micro-batch, one for forward and one for backward.
  Id boundary(Boundary what, Id segment, bool shard, bool per_pass = false);
  /// What forward saves of a segment for its backward, as bytes.
  Id saved(Id segment, bool per_pass = false);
  /// A tensor that the parts of a segment's attention exchange, as a flat storage of columns x
  /// tokens elements; one instance for each micro-batch and, with `per_pass`, for each of forward
  /// and recomputation. A buffer has `instances` instances, which all segments and micro-batches
  /// use in turn.
  Id exchanged(Exchanged what, Id segment, bool per_pass = false);
  Id buffer(Exchanged what, int instances);
  /// Two more storages like that of `view`, which is one of the above: one in the memory of the
  /// host, and one on the device for what comes back from there.
  struct Moved {
    Id host = none, back = none;
  };
  Moved moved(Id view);
  /// f32 (B T, 3): per token the maximum, sum of exponentials and target logit over this rank's
  /// part of the vocabulary.
  Id stats();
  /// f32 (tp, B T, 3): the stats of all tensor ranks.
  Id all_stats();

  /// The role of replicas that differ from this one only in their number of samples.
  program::Role as(const StageRole& who) const;

 private:
  enum class Size : std::uint8_t { boundary, shard, saved, stats, all_stats, queries, keys, both };
  struct Sized {
    Size size = Size::boundary;
    Id segment = none, view = none;
  };
  static Size size_of_exchanged(Exchanged what);
  std::int64_t elements(const Sized& sized, int samples) const;
  Id add(Sized sized, program::Storage storage);
  Id add(Sized sized, std::string name, program::DType dtype, int indices) {
    return add(sized, {.name = std::move(name), .dtype = dtype, .indices = indices});
  }

  program::RoleBuilder& role_;
  const plan::Plan& plan_;
  const model::ModelSpec& model_;
  const StageRole& who_;
  model::TensorSplit split_;
  std::vector<Sized> sized_ = {};
  std::vector<std::vector<Id>> boundaries_;  // views, [Boundary][segment]; none: not made yet
  std::vector<Id> saved_;                    // views, [segment]; none: not made yet
  std::vector<std::vector<Id>> exchanged_;   // views, [Exchanged][segment]; none: not made yet
  std::map<Id, Moved> moved_ = {};
  Id stats_ = none, all_stats_ = none;  // views; none: not made yet
};

}  // namespace rehearse::methods
