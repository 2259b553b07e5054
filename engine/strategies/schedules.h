// Pipeline schedules that more than one method uses: pure functions from (plan, stage) to one
// iteration of a stage.
#pragma once
#include <vector>

#include "engine/lowering/stage.h"

namespace rehearse {

/// 1F1B with flush (PipeDream-Flush; Narayanan et al. 2021): pp - stage - 1 forwards to warm up,
/// then one backward for each forward.
std::vector<Action> one_forward_one_backward(const Plan& plan, int stage);

}  // namespace rehearse
