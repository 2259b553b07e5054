// How many samples of a micro-batch each replica takes, so that fast ones take more.
#pragma once
#include <span>
#include <vector>

namespace rehearse::planner {

/// Whole numbers that sum to `total`, as near to the weights' proportions as whole numbers come
/// (largest remainder; ties: the lower index), each at least 1. `total` is at least the number of
/// weights.
std::vector<int> apportion(std::span<const double> weights, int total);

/// Samples by replica, `total` in all and at least one each, so that the slowest replica is done as
/// early as can be: each next sample goes to whom it delays least. `seconds_per_sample` by replica;
/// `total` is at least their number.
std::vector<int> shares_of(std::span<const double> seconds_per_sample, int total);

}  // namespace rehearse::planner
