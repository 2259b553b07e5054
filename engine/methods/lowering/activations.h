// What a stage keeps of its samples: activations at the boundaries between segments, their
// gradients, and what forward saves for backward. Their sizes follow the number of samples, so that
// replicas that take other numbers differ in these alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/methods/lowering/roles.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/program/role_builder.h"

namespace rehearse::methods {

/// A tensor at the boundary below a segment, (samples, sequence, hidden), or this rank's part of
/// the sequence where sequence parallelism splits it.
enum class Boundary : std::uint8_t {
  input,           // x: what the segment reads
  partial_output,  // y: what the segment before wrote, before it is summed and scattered
  grad,            // dx: the gradient of `input`
  partial_grad,    // dy: the same, before it is summed and scattered
  gathered_input,  // xg: `input` gathered along the sequence
  gathered_grad,   // dxg: `grad` gathered along the sequence
};

class Activations {
 public:
  /// All must outlive it.
  Activations(program::RoleBuilder& role, const plan::Plan& plan, const model::ModelSpec& model,
              const StageRole& who);

  /// One instance a micro-batch (twice that when forward and backward materialise it separately).
  Id boundary(Boundary what, Id segment, bool shard, bool per_pass = false);
  /// What forward keeps of a segment for its backward.
  Id saved(Id segment);
  /// Per token: maximum, sum of exponentials and target logit of this rank's part of the
  /// vocabulary; of all tensor ranks.
  Id stats();
  Id all_stats();

  /// The role as replicas play it that take another number of samples and differ in nothing else.
  program::Role as(const StageRole& who) const;

 private:
  enum class Size : std::uint8_t { boundary, shard, saved, stats, all_stats };
  struct Sized {
    Size size = Size::boundary;
    Id segment = none, view = none;
  };
  std::int64_t elements(const Sized& sized, int samples) const;
  Id add(Sized sized, std::string name, program::DType dtype, int indices);

  program::RoleBuilder& role_;
  const plan::Plan& plan_;
  const model::ModelSpec& model_;
  const StageRole& who_;
  std::vector<Sized> sized_ = {};
  std::vector<std::vector<Id>> boundaries_;  // views, [Boundary][segment]
  std::vector<Id> saved_;                    // views, by segment
  Id stats_ = none, all_stats_ = none;
};

}  // namespace rehearse::methods
