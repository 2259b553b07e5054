// Brings what all ranks observed of their gradients together as the variance of each layer
// (engine/tensors/variance.h).
#pragma once
#include <cstdint>
#include <vector>

#include "engine/costs/profile.h"
#include "runtime/execution/executor.h"

namespace rehearse::runtime {

/// Every rank calls it when all have ended the steps before `step`; all get the same, by segment;
/// empty when the program observes nothing. `first_step`: the first that this executor ran. Throws
/// InputError, at every rank, when a gradient was not finite.
std::vector<tensors::LayerVariance> gather_variances(const ExecutorContext& context,
                                                     Executor& executor, std::int64_t first_step,
                                                     std::int64_t step);

}  // namespace rehearse::runtime
