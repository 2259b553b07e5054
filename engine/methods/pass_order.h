// How a pipeline stage orders its forward and backward passes. Each method picks one of these
// orders; the files in strategies/ have pictures of them. All are pure functions of (plan, stage).
#pragma once
#include <optional>
#include <vector>

#include "engine/plan/plan.h"

namespace rehearse::methods {

/// One entry of a pipeline schedule: a pass of one model chunk over one micro-batch. A backward is
/// either one action or two, backward_input and some time later backward_weight. `chunk` counts
/// the chunks of this stage, from 0; without interleaving there is one. `shift`: as in program::Op.
struct Action {
  program::Pass pass = program::Pass::forward;
  int chunk = 0, microbatch = 0, shift = 0;
  /// If set: the optimizer's update follows this action, with this shift. If no action of the list
  /// sets it, the update follows the last backward of the step.
  std::optional<int> update = {};
};

struct PassOrder {
  /// The actions of a stage in one iteration, in order.
  std::vector<Action> (*actions)(const plan::Plan& plan, int stage) = nullptr;
  /// The largest number of pairs (chunk, micro-batch) whose activations the stage holds at once:
  /// the forward has begun and the backward has not ended, both halves of it.
  int (*in_flight)(const plan::Plan& plan, int stage) = nullptr;
  /// How many of these wait only for the second half of their backward. Null: backwards are whole,
  /// and a stage cannot begin a step while later stages still compute the one before.
  int (*halved)(const plan::Plan& plan, int stage) = nullptr;
};

/// Forward and backward of one micro-batch, then of the next. For one stage: gradient accumulation.
extern const PassOrder one_by_one;

/// 1F1B with flush (PipeDream-Flush; Narayanan et al., ICML 2021): pp - stage - 1 warm-up forwards,
/// then forward and backward in turn.
extern const PassOrder one_forward_one_backward;

/// GPipe (Huang et al. 2019): all forwards, then all backwards.
extern const PassOrder all_forward_all_backward;

/// Interleaved 1F1B (Narayanan et al., SC 2021): groups of pp micro-batches pass through all model
/// chunks of a rank.
extern const PassOrder interleave;
/// Throws Refused unless pp >= 2 and the micro-batches are a multiple of pp.
void check_interleaving(const plan::Plan& plan);

}  // namespace rehearse::methods
