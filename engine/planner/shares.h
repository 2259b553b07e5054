// Divides the samples of a micro-batch among unlike replicas, so that faster ones take more.
#pragma once
#include <span>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/job/job.h"

namespace rehearse::planner {

/// Integers in proportion to the weights that sum to `total`, each at least 1 (method of largest
/// remainders; ties: the lower index). `total` must be at least the number of weights.
std::vector<int> apportion(std::span<const double> weights, int total);

/// By replica: samples that sum to `total`, each at least 1, so that the last replica finishes as
/// early as possible. Gives each sample to the replica that would then finish first.
/// `seconds_per_sample`: by replica. `total` must be at least the number of replicas.
std::vector<int> shares_of(std::span<const double> seconds_per_sample, int total);

/// The job with shares by speed, if it asks for them: the passes of the replica that computes
/// longest are as short as they can be, by the prices of the dry run. Equal shares are left out.
/// Other jobs stay as they are.
job::Job with_shares(job::Job job, const costs::Profile* profile);

}  // namespace rehearse::planner
