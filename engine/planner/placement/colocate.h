// Greedy layer co-location as printed (Sun 2026, section 3.2): "layers with large c_l are placed on
// nodes with high intra-node bandwidth, while inter-server boundaries align with architectural
// seams, such as [...] after every 4-6 layers". It ignores memory and compute speed. Only for
// comparison with placement.h. Example: 12 layers with equal c_l except c_1 = 5, two nodes of two
// devices, node 1 with the faster links:
//
//     layer    0 1 2 3 4 5 | 6 7 8 9 10 11     the cheapest seam that leaves runs of 4 to 6 layers
//     node          1      |       0           the run with more bytes inside gets the faster node
//     device   2 2 2 3 3 3 | 0 0 0 1  1  1     evenly within a node
#pragma once
#include <span>
#include <vector>

#include "engine/planner/placement/distances.h"

namespace rehearse::planner {

/// By layer: the index of its device. `bytes[l]` is c_l, the bytes between layers l and l + 1;
/// `node[p]` is the node of device p. Cuts the layers into runs of 4 to 6 (or as near as layers and
/// nodes allow) at the cheapest seams. The run with the most bytes inside goes to the node whose
/// devices are nearest to each other, and so on. Each run is spread evenly over its node's devices.
/// Ties: the lower number.
std::vector<Id> colocate(std::span<const double> bytes, std::span<const Id> node,
                         const Distances& d);

}  // namespace rehearse::planner
