// Assigns ranks to devices so that Sun 2026, eq. 1, is minimal for a whole mesh. Eq. 1 counts
// traffic between layers. Here it counts traffic between ranks: activations and their gradients
// along a pipeline, and the rings of tensor groups and replicas (rank_grid.h). This is a quadratic
// assignment problem. A greedy assignment is the start, swaps improve it, and branch and bound
// finds the optimum for at most `exact_limit` devices.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "engine/planner/placement/distances.h"

namespace rehearse::planner {

/// Bytes per step from one rank to another.
struct RankTraffic {
  Id from = 0, to = 0;
  double bytes = 0;
};
/// By rank: the index of its device in the device list of Distances.
using Assignment = std::vector<Id>;

inline constexpr std::size_t exact_limit = 8;

/// Eq. 1: the sum of bytes x distance over all traffic, seconds.
double cost_of(std::span<const RankTraffic> traffic, const Assignment& assignment,
               const Distances& d);

/// Places ranks in the order of their traffic with the ranks placed so far, each on the free device
/// that costs least. Tries every device for the first rank and keeps the cheapest result; with more
/// than 64 devices tries only the most central one. Ties: the lower number.
Assignment greedy_assignment(std::span<const RankTraffic> traffic, std::size_t ranks,
                             const Distances& d);
/// Swaps the devices of two ranks, or moves a rank to a free device, as long as that lowers the
/// cost. `alike`: a value for each device; only devices with equal values are exchanged. Empty: all
/// may be.
Assignment local_search(std::span<const RankTraffic> traffic, Assignment start, const Distances& d,
                        std::span<const Id> alike = {});
/// The cheapest assignment of all; none: there are more devices than exact_limit.
std::optional<Assignment> exact_assignment(std::span<const RankTraffic> traffic, std::size_t ranks,
                                           const Distances& d);

}  // namespace rehearse::planner
