// recovery.slow_rank = "rebalance": which jobs can have it, and what it makes of a slow rank.
#pragma once
#include <vector>

#include "engine/base/id.h"
#include "engine/goodput/checkpoint_prices.h"
#include "engine/job/job.h"

namespace rehearse::study {

/// Throws InputError when the job asks for a rebalance and cannot give its ranks other shares.
void check_rebalance(const job::Job& job);

/// How many times as long steps take when all ranks on these slots compute `factor` times as long
/// and the replicas' shares follow that.
double balanced_factor(const job::Job& job, const goodput::Layout& layout,
                       const std::vector<Id>& slots, double factor);

}  // namespace rehearse::study
