// The rings that a collective lays over devices which are joined by cables, in place of one ring in
// the order of the members.
#pragma once
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"

namespace rehearse::costs {

/// Rings of the members of one group, each a permutation of 0 to n - 1 in the order of travel, as
/// NCCL's search finds them on NVLink's cube mesh (src/graph/search.cc): as many as possible, each
/// over its own share of the cables. A cable takes part in as many rings, in each direction, as its
/// bandwidth is times that of the narrowest cable. Empty: the group is not closed by cables alone.
std::vector<std::vector<int>> rings_of(const cluster::Cluster& cluster,
                                       std::span<const Id> devices);

/// By which cables a group's ring travels. At most one of the two is not empty; both are empty
/// where one ring in the order of the members serves as well as any.
struct Wiring {
  std::vector<std::vector<int>> rings = {};  // rings_of
  /// The members are a block of the cluster's torus, in its order: their number along each
  /// dimension (collectives::torus_rings).
  std::vector<int> torus = {};
  friend auto operator<=>(const Wiring&, const Wiring&) = default;
};
Wiring wiring_of(const cluster::Cluster& cluster, std::span<const Id> devices);

}  // namespace rehearse::costs
