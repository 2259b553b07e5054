// Pipeline schedules that more than one method uses: pure functions from (plan, stage) to one
// iteration of a stage.
#pragma once
#include <vector>

#include "engine/lowering/stage.h"

namespace rehearse {

/// 1F1B with flush (PipeDream-Flush; Narayanan et al. 2021): pp - stage - 1 forwards to warm up,
/// then one backward for each forward.
std::vector<Action> one_forward_one_backward(const Plan& plan, int stage);

/// GPipe (Huang et al. 2019): all forwards, then all backwards.
std::vector<Action> all_forward_all_backward(const Plan& plan, int stage);

/// Interleaved 1F1B (Narayanan et al. 2021), in groups of pp micro-batches over the model chunks of
/// a rank. Throws InputError for a plan that it cannot order.
std::vector<Action> interleave(const Plan& plan, int stage);

}  // namespace rehearse
