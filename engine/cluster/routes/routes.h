// Shortest paths through a cluster, without a table of all pairs (16,384 devices have 268 million).
// Each node is a separate Boost graph, a region, and so are the switches between nodes. A gate is a
// cable from a node to the region between nodes. A path stays inside a node, or has three parts:
//
//     node 0              between nodes             node 9
//     gpu1 - pcie - nic0 =gate= leaf0 - spine - leaf1 =gate= nic0 - pcie - gpu4
//
// If cables join two nodes directly, the whole cluster is one region. Private to Cluster.
#pragma once
#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

/// The length that shortest paths minimise: the sum of 1/bandwidth (Sun 2026, section 3.2) or, with
/// `latency`, first the number of devices that the path crosses, then its latency.
struct RouteMetric {
  bool latency = false;
  double above = 0;  // uses only links with more bandwidth than this, in bytes per second
};
/// The length of a path. Weights (of 1/bandwidth or latency) are whole numbers, so that equal paths
/// tie exactly in any order of summation.
struct RouteCost {
  std::uint64_t weight = 0;
  std::uint32_t hops = 0;
  friend auto operator<=>(const RouteCost&, const RouteCost&) = default;
};
struct RouteVertex {
  std::string name = {};
  Id node = none;
  bool device = false;
  bool sums = false;  // a switch that adds what devices send; no route depends on it
};

/// Whether the graph is a forest: then there is only one path between any two vertices.
bool is_forest(std::size_t vertices, const std::vector<std::pair<Id, Id>>& ends);

class Routes {
 public:
  /// ends[k]: the two vertices of cable k. Its directed links are 2k (first to second) and 2k + 1.
  Routes(const std::vector<RouteVertex>& vertices, const std::vector<std::pair<Id, Id>>& ends,
         std::span<const Link> links, RouteMetric metric);
  ~Routes();
  /// Sets `path` to the directed links from vertex a to vertex b. False: there is no path. The
  /// devices of a node take equal NICs, switches and cables in turn.
  bool find(Id a, Id b, std::vector<Id>& path);

 private:
  struct Region;
  struct Gate;
  const std::vector<RouteCost>& costs_from(std::size_t region, Id local);
  bool walk(std::size_t region, Id root, Id end, Id turn, std::vector<Id>& links);
  static std::pair<const Gate*, const Gate*> in_turn(
      std::span<const std::pair<const Gate*, const Gate*>> equal, Id source, Id destination);

  std::vector<Region> regions_;           // by node; the last one is between nodes
  std::vector<Id> region_of_, local_;     // by vertex: its region, and its index there
  std::vector<Id> turn_;                  // by vertex: of a device, its index on its node
  std::vector<std::vector<Gate>> gates_;  // by node
  std::size_t stored_ = 0;                // number of costs that all regions keep
};

}  // namespace rehearse::cluster
