// Greedy layer co-location as printed (Sun 2026, section 3.2): "layers with large c_l are placed on
// nodes with high intra-node bandwidth, while inter-server boundaries align with architectural
// seams, such as [...] after every 4-6 layers". It knows neither memory nor speed; placement.h
// solves what it approximates, and tests show by how much.
#pragma once
#include <span>
#include <vector>

#include "engine/planner/distances.h"

namespace rehearse::planner {

/// By layer: the place of its device. `bytes[l]` is c_l; `node[p]` the node of the device at place
/// p. Runs of 4 to 6 layers (as near to that as layers and nodes allow) with the cheapest seams
/// between them; the run with the most bytes inside goes to the node whose devices are nearest to
/// each other, and so on; within a node a run is spread evenly. Ties: the lower number.
std::vector<Id> colocate(std::span<const double> bytes, std::span<const Id> node,
                         const Distances& d);

}  // namespace rehearse::planner
