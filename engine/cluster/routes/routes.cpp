// Dijkstra's algorithm (Boost.Graph) computes the costs. The path is then walked back from its end,
// at each vertex to one of the predecessors of equal cost: those are sorted by name, and the
// devices of a node take them in turn. So the path does not depend on the order of switches in a
// file.
#include "engine/cluster/routes/routes.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <cassert>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace rehearse::cluster {
namespace {

struct Hop {
  RouteCost cost = {};
  Id link = none;  // the link from the edge's source to its target
};
using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, std::string, Hop>;

constexpr RouteCost unreachable{std::numeric_limits<std::uint64_t>::max(),
                                std::numeric_limits<std::uint32_t>::max()};
constexpr std::size_t most_stored = std::size_t{1} << 22;  // 64 MB of costs

RouteCost operator+(RouteCost a, RouteCost b) {
  if (a == unreachable || b == unreachable) return unreachable;
  return {a.weight + b.weight, a.hops + b.hops};
}

/// The weight of a link of 1 GB/s. It is the least common multiple of 1 to 25, so that the weights
/// of bandwidths such as 12.5, 22 and 44 GB/s are whole numbers.
constexpr double unit_weight = 26771144400;

constexpr double seconds_weight = 1e15;  // weight of a second: latencies in femtoseconds
/// Added to a link for each of its ends that is a device; more than the sum of all latencies of a
/// path. So by latency, a path that crosses fewer devices is always shorter.
constexpr std::uint64_t device_weight = std::uint64_t{1} << 56;
constexpr double most_weight = 1LL << 50;  // sums over dozens of links fit into 64 bits

RouteCost cost_of(const Link& link, const RouteMetric& metric, int devices) {
  const double weight = metric.latency ? seconds_weight * link.latency.value
                                       : unit_weight * 1e9 / link.bandwidth.value;
  const auto whole = static_cast<std::uint64_t>(std::llround(std::min(weight, most_weight)));
  return {metric.latency ? whole + static_cast<std::uint64_t>(devices) * device_weight : whole, 1};
}

}  // namespace

bool is_forest(std::size_t vertices, const std::vector<std::pair<Id, Id>>& ends) {
  std::vector<Id> root(vertices);
  std::iota(root.begin(), root.end(), Id{0});
  const auto root_of = [&root](Id v) {
    while (root[v] != v) v = root[v] = root[root[v]];
    return v;
  };
  return std::all_of(ends.begin(), ends.end(), [&](const auto& end) {
    const Id a = root_of(end.first), b = root_of(end.second);
    root[a] = b;
    return a != b;
  });
}

struct Routes::Region {
  Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  Graph graph = {};
  std::vector<bool> device = {};                              // by vertex
  std::unordered_map<Id, std::vector<RouteCost>> costs = {};  // by root: to each vertex
};
struct Routes::Gate {
  Id inner = none, outer = none;  // its two vertices: index in the node's region, and in the last
  Id out = none, in = none;       // its links: out of the node, into the node
  RouteCost cost = {};
};

Routes::Routes(const std::vector<RouteVertex>& vertices, const std::vector<std::pair<Id, Id>>& ends,
               std::span<const Link> links, RouteMetric metric) {
  Id nodes = 0;
  for (const RouteVertex& v : vertices)
    if (v.node != none) nodes = std::max(nodes, v.node + 1);
  const bool apart = std::all_of(ends.begin(), ends.end(), [&](const auto& end) {
    const Id a = vertices[end.first].node, b = vertices[end.second].node;
    return a == b || a == none || b == none;
  });
  if (!apart) nodes = 0;  // one region
  regions_ = std::vector<Region>(nodes + 1);
  gates_.resize(nodes);
  std::map<Id, Id> devices;  // of a node, so far
  for (const RouteVertex& v : vertices) {
    region_of_.push_back(apart && v.node != none ? v.node : nodes);
    Region& region = regions_[region_of_.back()];
    local_.push_back(static_cast<Id>(boost::add_vertex(v.name, region.graph)));
    region.device.push_back(v.device);
    turn_.push_back(v.device ? devices[v.node]++ : 0);
  }
  for (std::size_t k = 0; k < ends.size(); ++k) {
    auto [a, b] = ends[k];
    Id ab = static_cast<Id>(2 * k), ba = ab + 1;
    if (links[ab].bandwidth.value <= metric.above) continue;
    const RouteCost cost = cost_of(links[ab], metric, vertices[a].device + vertices[b].device);
    if (region_of_[a] == region_of_[b]) {
      Graph& graph = regions_[region_of_[a]].graph;
      boost::add_edge(local_[a], local_[b], Hop{cost, ab}, graph);
      boost::add_edge(local_[b], local_[a], Hop{cost, ba}, graph);
      continue;
    }
    if (region_of_[a] == nodes) std::swap(a, b), std::swap(ab, ba);
    gates_[region_of_[a]].push_back({local_[a], local_[b], ab, ba, cost});
  }
  for (Id node = 0; node < nodes; ++node)
    std::sort(gates_[node].begin(), gates_[node].end(), [&](const Gate& a, const Gate& b) {
      const auto name = [&](const Gate& g) {
        return std::tie(regions_[nodes].graph[g.outer], regions_[node].graph[g.inner], g.out);
      };
      return name(a) < name(b);
    });
}

Routes::~Routes() = default;

const std::vector<RouteCost>& Routes::costs_from(std::size_t region, Id local) {
  Region& r = regions_[region];
  if (const auto it = r.costs.find(local); it != r.costs.end()) return it->second;
  const std::size_t n = boost::num_vertices(r.graph);
  std::vector<RouteCost>& costs = r.costs[local];
  costs.resize(n);
  stored_ += n;
  boost::dijkstra_shortest_paths(
      r.graph, local,
      boost::weight_map(boost::get(&Hop::cost, r.graph))
          .distance_map(boost::make_iterator_property_map(costs.begin(),
                                                          boost::get(boost::vertex_index, r.graph)))
          .distance_compare(std::less<>())
          .distance_combine([](RouteCost a, RouteCost b) { return a + b; })
          .distance_inf(unreachable)
          .distance_zero(RouteCost{}));
  return costs;
}

/// Appends the links of the path from `end` to `root`. Cables are equal in both directions, so the
/// costs from the root are also the costs to it. Of n equal hops it takes the one with the index
/// turn modulo n; through a device, which forwards for few others, the first.
bool Routes::walk(std::size_t region, Id root, Id end, Id turn, std::vector<Id>& links) {
  const Region& r = regions_[region];
  const std::vector<RouteCost>& costs = costs_from(region, root);
  if (costs[end] == unreachable) return false;
  std::vector<std::pair<Id, Id>> hops;  // vertex and link
  for (Id at = end; at != root;) {
    hops.clear();
    for (auto [e, last] = boost::out_edges(at, r.graph); e != last; ++e) {
      const Id to = static_cast<Id>(boost::target(*e, r.graph));
      const Hop& hop = r.graph[*e];
      if (costs[to] != unreachable && costs[to] + hop.cost == costs[at])
        hops.emplace_back(to, hop.link);
    }
    assert(!hops.empty());
    std::ranges::sort(hops, {},
                      [&](const auto& hop) { return std::tie(r.graph[hop.first], hop.second); });
    const bool forwards = std::ranges::any_of(
        hops, [&](const auto& hop) { return hop.first != root && r.device[hop.first]; });
    const auto& [next, link] = hops[forwards ? 0 : turn % hops.size()];
    links.push_back(link);
    at = next;
  }
  return true;
}

/// Of equal pairs of gates: the source takes one of the first gates in its turn, then the
/// destination one of those that go with it. `equal` is sorted by the first gate.
std::pair<const Routes::Gate*, const Routes::Gate*> Routes::in_turn(
    std::span<const std::pair<const Gate*, const Gate*>> equal, Id source, Id destination) {
  std::vector<std::size_t> begins;  // of the pairs of each first gate
  for (std::size_t i = 0; i < equal.size(); ++i)
    if (i == 0 || equal[i].first != equal[i - 1].first) begins.push_back(i);
  const std::size_t k = source % begins.size();
  const std::size_t end = k + 1 < begins.size() ? begins[k + 1] : equal.size();
  return equal[begins[k] + destination % (end - begins[k])];
}

bool Routes::find(Id a, Id b, std::vector<Id>& path) {
  path.clear();
  if (stored_ > most_stored) {  // only here: the rest of the function refers to costs
    for (Region& region : regions_) region.costs.clear();
    stored_ = 0;
  }
  // A walk leads from an end to a root. Reversing it and each of its links leads from root to end.
  const auto reverse = [&path](std::size_t from) {
    std::reverse(path.begin() + static_cast<std::ptrdiff_t>(from), path.end());
    for (std::size_t i = from; i < path.size(); ++i) path[i] ^= 1U;
  };
  const std::size_t between = regions_.size() - 1, ra = region_of_[a], rb = region_of_[b];
  const RouteCost local = ra == rb ? costs_from(ra, local_[a])[local_[b]] : unreachable;
  // A vertex between nodes is its own gate.
  const auto gates = [&](Id v, std::size_t region) {
    return region == between ? std::vector<Gate>{{local_[v], local_[v], none, none, {}}}
                             : gates_[region];
  };
  std::vector<std::pair<const Gate*, const Gate*>> equal;  // gates of the best paths
  RouteCost best = local;
  const std::vector<Gate> outs = gates(a, ra), ins = gates(b, rb);
  const std::vector<RouteCost>* const from_a = ra == between ? nullptr : &costs_from(ra, local_[a]);
  const std::vector<RouteCost>* const to_b = rb == between ? nullptr : &costs_from(rb, local_[b]);
  for (const Gate& o : outs) {
    const RouteCost to_gate = (from_a == nullptr ? RouteCost{} : (*from_a)[o.inner]) + o.cost;
    if (to_gate > best || (ra == between && rb == between)) continue;
    const std::vector<RouteCost>& middle = costs_from(between, o.outer);
    for (const Gate& i : ins) {
      const RouteCost total =
          to_gate + middle[i.outer] + i.cost + (to_b == nullptr ? RouteCost{} : (*to_b)[i.inner]);
      if (total < best) best = total, equal.clear();
      if (total == best && total != local) equal.emplace_back(&o, &i);
    }
  }
  if (best == unreachable) return false;
  if (equal.empty()) {
    walk(ra, local_[a], local_[b], turn_[a], path);
    reverse(0);
    return true;
  }
  const auto [out, in] = in_turn(equal, turn_[a], turn_[b]);
  if (ra != between) {
    walk(ra, local_[a], out->inner, turn_[a], path);
    reverse(0);
    path.push_back(out->out);
  }
  const std::size_t before = path.size();
  walk(between, out->outer, in->outer, turn_[a] + (ra == between ? 0 : static_cast<Id>(ra)), path);
  reverse(before);
  if (rb != between) {
    path.push_back(in->in);
    walk(rb, local_[b], in->inner, turn_[b], path);
  }
  return true;
}

}  // namespace rehearse::cluster
