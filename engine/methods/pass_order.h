// How a pipeline stage orders its forward and backward passes: what a method's file says of its
// schedule. Pure functions of (plan, stage).
#pragma once
#include <optional>
#include <vector>

#include "engine/plan/plan.h"

namespace rehearse::methods {

/// One entry of a pipeline schedule. `chunk` counts the model chunks of this rank (0 without
/// interleaving). `shift` as in Op.
struct Action {
  program::Pass pass = program::Pass::forward;
  int chunk = 0, microbatch = 0, shift = 0;
  /// The shift of the update that follows; without one in the whole list it follows the last
  /// backward of the step.
  std::optional<int> update = {};
};

struct PassOrder {
  /// What stage `stage` does in one iteration, in order.
  std::vector<Action> (*actions)(const plan::Plan& plan, int stage) = nullptr;
  /// The largest number of (chunk, micro-batch) whose activations the stage holds at once: those
  /// whose forward has begun and whose backward has not ended.
  int (*in_flight)(const plan::Plan& plan, int stage) = nullptr;
};

/// Forward and backward of one micro-batch after the other: one stage, with gradient accumulation.
extern const PassOrder one_by_one;

/// 1F1B with flush (PipeDream-Flush; Narayanan et al. 2021): pp - stage - 1 forwards to warm up,
/// then one backward for each forward.
extern const PassOrder one_forward_one_backward;

/// GPipe (Huang et al. 2019): all forwards, then all backwards.
extern const PassOrder all_forward_all_backward;

/// Interleaved 1F1B (Narayanan et al. 2021), in groups of pp micro-batches over the model chunks of
/// a rank.
extern const PassOrder interleave;
/// Throws Refused for a plan that it cannot order.
void check_interleaving(const plan::Plan& plan);

}  // namespace rehearse::methods
