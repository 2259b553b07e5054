// Gathers what all ranks observed of their gradients, and computes from it the gradient variance of
// each layer (engine/tensors/variance.h).
#pragma once
#include <cstdint>
#include <vector>

#include "engine/costs/profile.h"
#include "runtime/executor/executor.h"

namespace rehearse::runtime {

/// Every rank calls it when all ranks have ended the steps before `step`. All get the same result,
/// by segment; empty when the program has no observe kernels. `first_step`: the first step that
/// this executor ran. Throws InputError on every rank when a gradient was not finite.
std::vector<tensors::LayerVariance> gather_variances(const ExecutorContext& context,
                                                     Executor& executor, std::int64_t first_step,
                                                     std::int64_t step);

}  // namespace rehearse::runtime
