// Shortest paths through a cluster, without ever storing all pairs: 16,384 devices have 268
// million. Each node is a Boost graph of its own, and so is what stands between nodes; a path is
// local, or local to a gate, then between, then local. A cluster whose nodes touch each other
// directly is one graph. Private to Cluster.
#pragma once
#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

/// What a path is chosen by. Paths of the least 1/bandwidth are the paper's (Sun 2026,
/// section 3.2); those of the least latency take only links above a bandwidth, and cross as few
/// devices as they can.
struct RouteMetric {
  bool latency = false;
  double above = 0;  // bytes a second
};
/// Weights (1/bandwidth or latency) are whole numbers, so that equal paths tie exactly, in whatever
/// order they are summed.
struct RouteCost {
  std::uint64_t weight = 0;
  std::uint32_t hops = 0;
  friend auto operator<=>(const RouteCost&, const RouteCost&) = default;
};
struct RouteVertex {
  std::string name = {};
  Id node = none;
  bool device = false;
};

class Routes {
 public:
  /// ends[k] = the two vertices of cable k, whose directed links are 2k (first to second) and 2k
  /// + 1.
  Routes(const std::vector<RouteVertex>& vertices, const std::vector<std::pair<Id, Id>>& ends,
         std::span<const Link> links, RouteMetric metric);
  ~Routes();
  /// Directed links from vertex a to vertex b. False when there is no path.
  bool find(Id a, Id b, std::vector<Id>& path);

 private:
  struct Region;
  struct Gate;
  const std::vector<RouteCost>& costs_from(std::size_t region, Id local);
  bool walk(std::size_t region, Id root, Id end, std::vector<Id>& links);

  std::vector<Region> regions_;           // by node; the last: between nodes
  std::vector<Id> region_of_, local_;     // by vertex
  std::vector<std::vector<Gate>> gates_;  // by node
  std::size_t stored_ = 0;                // costs kept in all regions
};

}  // namespace rehearse::cluster
