#include "engine/costs/network/in_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <unordered_map>

#include "engine/base/errors.h"

namespace rehearse::costs {
namespace {

using program::Move;

/// The members of a group by node. Part i of the tensor, of as many as the widest node has members,
/// belongs to member i of each node, modulo the node's number of members.
struct Nodes {
  Nodes(const cluster::Cluster& cluster, std::span<const Id> devices)
      : members(members_by_node(cluster, devices)) {
    for (const std::vector<int>& node : members) parts = std::max(parts, node.size());
  }
  int owner(std::size_t node, std::size_t part) const {
    return members[node][part % members[node].size()];
  }
  /// The devices of a part's owners, by node.
  std::vector<Id> owners(std::span<const Id> devices, std::size_t part) const {
    std::vector<Id> out;
    for (std::size_t node = 0; node < members.size(); ++node)
      out.push_back(devices[static_cast<std::size_t>(owner(node, part))]);
    return out;
  }
  std::vector<std::vector<int>> members = {};  // [node]
  std::size_t parts = 0;
};

/// What each pair inside a node exchanges.
class InNode {
 public:
  InNode(const Nodes& nodes, double part) : nodes_(nodes), part_(part) {}
  /// Each member but `except` gets the terms of (or, gathering, the finished) parts.
  void scatter(std::size_t node) {
    each_pair(node, [&](int from, int to) { add(from, to, owned(node, to)); });
  }
  void gather(std::size_t node, int except = -1) {
    each_pair(node, [&](int from, int to) {
      if (to != except) add(from, to, owned(node, from));
    });
  }
  /// Between the root and the owners of the parts.
  void to_root(std::size_t node, int root) {
    for (const int member : nodes_.members[node]) add(member, root, owned(node, member));
  }
  void from_root(std::size_t node, int root) {
    for (const int member : nodes_.members[node]) add(root, member, owned(node, member));
  }
  double owned(std::size_t node, int member) const {
    double out = 0;
    for (std::size_t p = 0; p < nodes_.parts; ++p)
      if (nodes_.owner(node, p) == member) out += part_;
    return out;
  }
  std::vector<Flow> flows() const {
    std::vector<Flow> out;
    for (const auto& [pair, bytes] : bytes_) out.push_back({pair.first, pair.second, bytes});
    return out;
  }

 private:
  template <class F>
  void each_pair(std::size_t node, F f) const {
    for (const int from : nodes_.members[node])
      for (const int to : nodes_.members[node])
        if (from != to) f(from, to);
  }
  void add(int from, int to, double bytes) {
    if (from != to && bytes > 0) bytes_[{from, to}] += bytes;
  }
  const Nodes& nodes_;
  double part_;
  std::map<std::pair<int, int>, double> bytes_ = {};
};

InNode in_node(const Nodes& nodes, Move move, double part, int root, std::size_t root_node) {
  InNode out(nodes, part);
  for (std::size_t node = 0; node < nodes.members.size(); ++node) {
    if (move != Move::broadcast) out.scatter(node);
    if (move == Move::all_reduce) out.gather(node);
    if (move == Move::broadcast) out.gather(node, node == root_node ? root : -1);
  }
  if (move == Move::reduce) out.to_root(root_node, root);
  if (move == Move::broadcast) out.from_root(root_node, root);
  return out;
}

void add_links(std::vector<Id>& to, const std::vector<Id>& links, Id flip = 0) {
  for (const Id link : links) to.push_back(link ^ flip);
}

/// The links that carry one part. `root`: the index of its owner on the root's node.
SumFlow sum_of(const cluster::SumTree& tree, Move move, double bytes, std::size_t root) {
  SumFlow out{.bytes = bytes};
  for (std::size_t i = 0; i < tree.down.size(); ++i) {
    if (move != Move::broadcast) add_links(out.links, tree.up[i]);
    const bool down = move == Move::all_reduce || (move == Move::reduce) == (i == root);
    if (down) add_links(out.links, tree.down[i]);
  }
  if (move == Move::broadcast) add_links(out.links, tree.down[root], 1);  // nothing is added
  std::sort(out.links.begin(), out.links.end());
  out.links.erase(std::unique(out.links.begin(), out.links.end()), out.links.end());
  return out;
}

double latency_of(const cluster::Cluster& cluster, const std::vector<Id>& links) {
  double out = 0;
  for (const Id link : links) out += cluster.links()[link].latency.value;
  return out;
}

/// Up the slowest way and down the slowest way.
double latency_of(const cluster::Cluster& cluster, const cluster::SumTree& tree) {
  double up = 0, down = 0;
  for (std::size_t i = 0; i < tree.up.size(); ++i) {
    up = std::max(up, latency_of(cluster, tree.up[i]));
    down = std::max(down, latency_of(cluster, tree.down[i]));
  }
  return up + down;
}

/// One hop between members of a node: NVLink or not decides the library's time.
double hop_in_node(const cluster::Cluster& cluster, std::span<const Id> devices,
                   const std::vector<Flow>& flows, const software::ProtocolTimes* times) {
  double slowest = 0;
  bool nvlink = true;
  for (const Flow& flow : flows) {
    const cluster::Path& way = cluster.way(devices[static_cast<std::size_t>(flow.from)],
                                           devices[static_cast<std::size_t>(flow.to)], flow.bytes);
    slowest = std::max(slowest, way.latency.value);
    for (const Id link : way.links) nvlink = nvlink && cluster.links()[link].nvlink;
  }
  if (flows.empty()) return 0;
  return times == nullptr ? slowest : (nvlink ? times->nvlink : times->pcie).value;
}

double seconds_of_bytes(const cluster::Cluster& cluster, std::span<const Id> devices,
                        const LibraryCollective& one) {
  std::unordered_map<Id, double> load;
  for (const Flow& flow : one.flows)
    for (const Id link : cluster.path(devices[static_cast<std::size_t>(flow.from)],
                                      devices[static_cast<std::size_t>(flow.to)], flow.bytes))
      load[link] += flow.bytes;
  for (const SumFlow& sum : one.sums)
    for (const Id link : sum.links) load[link] += sum.bytes;
  double slowest = 0;
  for (const auto& [link, bytes] : load)
    slowest = std::max(slowest, one.occupancy * bytes / cluster.links()[link].bandwidth.value);
  return slowest;
}

std::string reason(const cluster::Cluster& cluster, const std::string& cannot) {
  return fmt::format(
      "in_network: {} on cluster {} (fabric.sums of a platform file names switches that do); "
      "hierarchical or ring needs none",
      cannot, cluster.name());
}

}  // namespace

std::string why_not_in_network(const cluster::Cluster& cluster, std::span<const Id> devices) {
  const Nodes nodes(cluster, devices);
  if (nodes.members.size() < 2) return reason(cluster, "all ranks are on one node");
  for (std::size_t part = 0; part < nodes.parts; ++part)
    if (const cluster::SumTree tree = cluster.sum_tree(nodes.owners(devices, part));
        !tree.cannot.empty())
      return reason(cluster, tree.cannot);
  return {};
}

LibraryCollective in_network(const cluster::Cluster& cluster, Move move, double bytes,
                             std::span<const Id> devices, int root,
                             const software::ProtocolTimes* times) {
  assert(devices.size() > 1);
  const Nodes nodes(cluster, devices);
  std::size_t root_node = 0;
  while (std::ranges::find(nodes.members[root_node], root) == nodes.members[root_node].end())
    ++root_node;
  const double part = bytes / static_cast<double>(nodes.parts);
  const InNode inside = in_node(nodes, move, part, root, root_node);
  LibraryCollective out{.algorithm = program::Algorithm::in_network, .flows = inside.flows()};
  out.sent.assign(devices.size(), 0);
  double wires = 0;
  for (std::size_t p = 0; nodes.members.size() > 1 && p < nodes.parts; ++p) {
    const cluster::SumTree tree = cluster.sum_tree(nodes.owners(devices, p));
    if (!tree.cannot.empty()) throw InputError(reason(cluster, tree.cannot));
    out.sums.push_back(sum_of(tree, move, part, root_node));
    wires = std::max(wires, latency_of(cluster, tree));
    for (std::size_t node = 0; node < nodes.members.size(); ++node)
      if (move != Move::broadcast || node == root_node)
        out.sent[static_cast<std::size_t>(nodes.owner(node, p))] += part;
  }
  const software::Library& library = cluster.library();
  out.latency = (times == nullptr ? library.launch : times->base).value +
                2 * hop_in_node(cluster, devices, out.flows, times);
  if (!out.sums.empty())
    out.latency += wires + (times == nullptr ? library.across : times->network).value;
  out.occupancy = times == nullptr ? 1 : 1 / times->efficiency;
  out.seconds = out.latency + seconds_of_bytes(cluster, devices, out);
  return out;
}

}  // namespace rehearse::costs
