// Divides the samples of a micro-batch among unlike replicas, so that faster ones take more.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/job/job.h"

namespace rehearse::planner {

/// Integers in proportion to the weights that sum to `total`, each at least 1 (method of largest
/// remainders; ties: the lower index). `total` must be at least the number of weights.
std::vector<int> apportion(std::span<const double> weights, int total);

/// By replica: what its slowest rank has. `seconds`: by rank; 0: a rank of no replica.
std::vector<double> by_replica(const plan::Plan& plan, std::span<const double> seconds);

/// By replica: samples that sum to `total`, each at least 1, so that the last replica finishes as
/// early as possible. Gives each sample to the replica that would then finish first.
/// `seconds_per_sample`: by replica. `total` must be at least the number of replicas.
std::vector<int> shares_of(std::span<const double> seconds_per_sample, int total);

/// Shares near the given ones, with the same sum, for replicas whose times do not grow in
/// proportion to their samples. `seconds(i, n)`: of replica i with n samples; does not fall with n.
/// The last replica finishes as early as it can with at most four samples fewer on each replica.
/// The given ones, if that is no earlier.
std::vector<int> refined(std::span<const int> shares,
                         const std::function<double(std::size_t, int)>& seconds);

/// No list when all are equal, as a plan has it.
std::vector<int> unless_equal(std::vector<int> shares);

/// Shares by which the replica that is longest at work is so for the shortest time.
struct Balance {
  std::vector<int> shares = {};  // samples of a micro-batch, by replica
  /// Seconds of a step that the passes take on the slowest replica, now and with `shares`.
  double slowest_now_s = 0, slowest_balanced_s = 0;
};
/// `busy`: by rank, seconds of the passes of a step under the plan; 0: a rank of no replica.
Balance balance(const plan::Plan& plan, std::span<const double> busy);

/// The job with shares by speed, if it asks for them: the passes of the replica that computes
/// longest are as short as they can be, by the prices of the dry run. Equal shares are left out.
/// Other jobs stay as they are.
job::Job with_shares(job::Job job, const costs::Profile* profile);

}  // namespace rehearse::planner
