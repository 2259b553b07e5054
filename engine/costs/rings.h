// The rings that a library lays over devices which are joined by cables, as NCCL's search does on
// NVLink's cube mesh (src/graph/search.cc): as many rings as possible, each over its own share of
// the cables.
#pragma once
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"

namespace rehearse::costs {

/// Rings of the members of one group, each a permutation of 0 to n - 1 in the order of travel. A
/// cable takes part in as many rings, in each direction, as its bandwidth is times that of the
/// narrowest cable. Empty: the group is not closed by cables alone, and one ring in the order of
/// the members serves as well as any.
std::vector<std::vector<int>> rings_of(const cluster::Cluster& cluster,
                                       std::span<const Id> devices);

}  // namespace rehearse::costs
