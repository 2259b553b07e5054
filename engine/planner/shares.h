// How many samples of a micro-batch each replica takes: in proportion to its speed.
#pragma once
#include <span>
#include <vector>

namespace rehearse {

/// Whole numbers that sum to `total`, as near to the weights' proportions as whole numbers come
/// (largest remainder; ties: the lower index), each at least 1. `total` is at least the number of
/// weights.
std::vector<int> apportion(std::span<const double> weights, int total);

}  // namespace rehearse
