// Which segments each model chunk has when the plan does not list them.
#pragma once
#include <vector>

#include "engine/plan/plan.h"

namespace rehearse::plan {

/// [model chunk]: its segments, as the plan's Partition divides them. Throws Refused for layers
/// that do not make so many chunks.
std::vector<std::vector<Id>> divided(const Plan& plan, const model::ModelSpec& model, int chunks);

}  // namespace rehearse::plan
