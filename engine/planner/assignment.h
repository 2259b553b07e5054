// Assignment of ranks to devices: eq. 1 of Sun 2026 for a whole mesh. What is moved between layers
// in eq. 1 is moved between ranks here: activations and their gradients along a pipeline, the rings
// of tensor groups and of replicas. The problem is a quadratic assignment: greedy co-location gives
// a start, swaps improve it, branch and bound proves the optimum where there are at most
// `exact_limit` devices.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "engine/planner/distances.h"

namespace rehearse::planner {

/// Bytes a step from one rank to another.
struct RankTraffic {
  Id from = 0, to = 0;
  double bytes = 0;
};
/// By rank: the place of its device in the list of the distances.
using Assignment = std::vector<Id>;

inline constexpr std::size_t exact_limit = 8;

/// Sum over the pairs that talk of bytes x distance: eq. 1.
double cost_of(std::span<const RankTraffic> traffic, const Assignment& assignment,
               const Distances& d);

/// The heaviest talkers first, each on the free device that costs least beside those that are
/// placed. The first one on every device in turn, the cheapest outcome counting (beyond 64 devices:
/// only where devices are nearest to each other). Ties: the lower number.
Assignment greedy_assignment(std::span<const RankTraffic> traffic, std::size_t ranks,
                             const Distances& d);
/// Swaps two ranks' devices, or a rank's with a free one, while that lowers the cost. `alike`: only
/// devices with equal values are swapped (by place; empty: all).
Assignment local_search(std::span<const RankTraffic> traffic, Assignment start, const Distances& d,
                        std::span<const Id> alike = {});
/// The cheapest of all, or none where there are more devices than exact_limit.
std::optional<Assignment> exact_assignment(std::span<const RankTraffic> traffic, std::size_t ranks,
                                           const Distances& d);

}  // namespace rehearse::planner
