#include "engine/costs/library_collective.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/collectives/schedule.h"
#include "engine/costs/in_network.h"
#include "engine/costs/rings.h"

namespace rehearse::costs {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// The members of a node in the order in which a ring visits them where no cables close one: from
/// the first device of the platform each time to the nearest that is left, as NCCL's search does.
/// In which order a group names its members makes no difference.
std::vector<int> tour(const cluster::Cluster& cluster, std::span<const Id> devices,
                      std::vector<int> left) {
  std::ranges::sort(left, {}, [&](int m) { return devices[at(m)]; });
  std::vector<int> way = {left.front()};
  left.erase(left.begin());
  while (!left.empty()) {
    const auto distance = [&](int m) {
      double sum = 0;
      for (const Id link : cluster.path(devices[at(way.back())], devices[at(m)]))
        sum += 1 / cluster.links()[link].bandwidth.value;
      return sum;
    };
    const auto nearest = std::ranges::min_element(left, {}, distance);
    way.push_back(*nearest);
    left.erase(nearest);
  }
  return way;
}

/// The members of a group by node, and cycles through the members of each node.
class Channels {
 public:
  Channels(const cluster::Cluster& cluster, std::span<const Id> devices) {
    std::unordered_map<Id, std::size_t> number;
    for (std::size_t m = 0; m < devices.size(); ++m) {
      const Id node = cluster.devices()[devices[m]].node;
      const auto [it, fresh] = number.try_emplace(node, nodes_.size());
      if (fresh) nodes_.emplace_back();
      nodes_[it->second].push_back(static_cast<int>(m));
    }
    for (const std::vector<int>& members : nodes_) {
      std::vector<Id> local;
      for (const int m : members) local.push_back(devices[at(m)]);
      std::vector<std::vector<int>> cycles = rings_of(cluster, local);
      for (std::vector<int>& cycle : cycles)
        for (int& m : cycle) m = members[at(m)];
      if (cycles.empty()) cycles.push_back(tour(cluster, devices, members));
      most_cycles_ = std::max(most_cycles_, cycles.size());
      most_members_ = std::max(most_members_, members.size());
      fewest_members_ = std::min(fewest_members_, members.size());
      cycles_.push_back(std::move(cycles));
    }
  }

  std::size_t nodes() const { return nodes_.size(); }
  const std::vector<int>& members(std::size_t node) const { return nodes_[node]; }
  std::size_t most_members() const { return most_members_; }
  std::size_t fewest_members() const { return fewest_members_; }
  /// On one node, one channel for each cycle. On several, each cycle is cut at each of its members
  /// in turn, so that every NIC carries an equal share.
  std::size_t count() const { return most_cycles_ * (nodes() > 1 ? most_members_ : 1); }
  /// The channel's way through a node, from the member with the local index `first` (modulo the
  /// number of members) onwards.
  std::vector<int> way(std::size_t node, std::size_t channel, std::size_t first) const {
    const std::vector<int>& members = nodes_[node];
    std::vector<int> cycle = cycles_[node][channel % cycles_[node].size()];
    const int start = members[first % members.size()];
    std::rotate(cycle.begin(), std::find(cycle.begin(), cycle.end(), start), cycle.end());
    return cycle;
  }
  /// The local index of the member with which the channel begins in the first node, or with which
  /// it talks to other nodes in a tree.
  std::size_t head(std::size_t channel) const { return channel / most_cycles_; }
  std::size_t local_index(std::size_t node, int member) const {
    const auto it = std::find(nodes_[node].begin(), nodes_[node].end(), member);
    return static_cast<std::size_t>(it - nodes_[node].begin());
  }

 private:
  std::vector<std::vector<int>> nodes_ = {};                // [node]: members
  std::vector<std::vector<std::vector<int>>> cycles_ = {};  // [node][cycle]: members
  std::size_t most_cycles_ = 1, most_members_ = 1, fewest_members_ = SIZE_MAX;
};

/// Sums the bytes of each pair.
class Flows {
 public:
  void add(int from, int to, double bytes) {
    if (from != to) bytes_[{from, to}] += bytes;
  }
  std::vector<Flow> take() const {
    std::vector<Flow> out;
    out.reserve(bytes_.size());
    for (const auto& [pair, bytes] : bytes_) out.push_back({pair.first, pair.second, bytes});
    return out;
  }

 private:
  std::map<std::pair<int, int>, double> bytes_ = {};
};

std::vector<Flow> ring_flows(const Channels& channels, program::Move move, int n, double bytes,
                             int root) {
  const bool rooted = has_root(move);
  const double all = rooted                              ? bytes
                     : move == program::Move::all_reduce ? 2.0 * (n - 1) / n * bytes
                                                         : 1.0 * (n - 1) / n * bytes;
  const double share = all / static_cast<double>(channels.count());
  Flows flows;
  const auto edge = [&](int from, int to) {
    // A broadcast does not come back to its root, and a reduction does not start from it.
    if (rooted && (move == program::Move::broadcast ? to : from) == root) return;
    flows.add(from, to, share);
  };
  for (std::size_t c = 0; c < channels.count(); ++c) {
    std::size_t first = channels.head(c);
    int begin = -1, last = -1;
    for (std::size_t node = 0; node < channels.nodes(); ++node) {
      const std::vector<int> way = channels.way(node, c, first);
      if (last >= 0) edge(last, way.front());
      if (begin < 0) begin = way.front();
      for (std::size_t i = 1; i < way.size(); ++i) edge(way[i - 1], way[i]);
      last = way.back();
      first = channels.local_index(node, last);
    }
    edge(last, begin);
  }
  return flows.take();
}

/// Sums go up and the result goes down: along chains inside nodes, along two trees over nodes.
std::vector<Flow> tree_flows(const Channels& channels, double bytes) {
  const double share = bytes / static_cast<double>(channels.count());
  const auto trees = collectives::two_trees(static_cast<int>(channels.nodes()));
  Flows flows;
  for (std::size_t c = 0; c < channels.count(); ++c) {
    std::vector<int> heads;
    for (std::size_t node = 0; node < channels.nodes(); ++node) {
      const std::vector<int> way = channels.way(node, c, channels.head(c));
      heads.push_back(way.front());
      for (std::size_t i = 1; i < way.size(); ++i)
        flows.add(way[i], way[i - 1], share), flows.add(way[i - 1], way[i], share);
    }
    for (const std::vector<int>& parent : trees)
      for (std::size_t node = 1; node < heads.size(); ++node) {
        const int below = heads[node], above = heads[at(parent[node])];
        flows.add(below, above, share / 2), flows.add(above, below, share / 2);
      }
  }
  return flows.take();
}

/// Each member sends the tensor to the switch once and receives it once, plus its part of the sum
/// in both directions; over several nodes it does so twice, before and after the trees. Those bytes
/// are spread over the other members, behind the same switch.
std::vector<Flow> nvls_flows(const Channels& channels, double bytes) {
  Flows flows;
  const auto trees = collectives::two_trees(static_cast<int>(channels.nodes()));
  for (std::size_t node = 0; node < channels.nodes(); ++node) {
    const std::vector<int>& members = channels.members(node);
    const auto k = static_cast<double>(members.size());
    const double all = bytes * (1 + (channels.nodes() > 1 ? 2 : 1) / k);
    for (const int from : members)
      for (const int to : members) flows.add(from, to, all / (k - 1));
  }
  for (std::size_t i = 0; i < channels.most_members(); ++i)
    for (const std::vector<int>& parent : trees)
      for (std::size_t node = 1; node < channels.nodes(); ++node) {
        const int below = channels.members(node)[i], above = channels.members(at(parent[node]))[i];
        const double share = bytes / static_cast<double>(channels.most_members()) / 2;
        flows.add(below, above, share), flows.add(above, below, share);
      }
  return flows.take();
}

/// All members send their parts to all others at the same time. In large groups a member sends what
/// leaves its node to one device on each of a few nodes, others than its neighbours do. So each
/// device, and each node together, still sends and receives as much.
std::vector<Flow> direct_flows(const Channels& channels, std::size_t n, double bytes) {
  constexpr std::size_t every_pair = 32, few_nodes = 8;
  const double part = bytes / static_cast<double>(n);
  const std::size_t nodes = channels.nodes(), each = channels.most_members();
  const bool few = n > every_pair && each == channels.fewest_members();
  const double away = part * static_cast<double>(n - each);  // what leaves a node, of a member
  const std::size_t others = few ? std::min(nodes - 1, few_nodes) : 0;
  std::vector<Flow> out;
  const auto to_all = [&](int from, const std::vector<int>& members) {
    for (const int to : members)
      if (to != from) out.push_back({from, to, part});
  };
  for (std::size_t node = 0; node < nodes; ++node)
    for (std::size_t i = 0; i < channels.members(node).size(); ++i) {
      const int from = channels.members(node)[i];
      for (std::size_t other = 0; other < nodes; ++other)
        if (other == node || !few) to_all(from, channels.members(other));
      for (std::size_t k = 0; k < others; ++k) {
        const std::size_t distance = 1 + (k * each + i) * (nodes - 1) / (others * each);
        const int to = channels.members((node + distance) % nodes)[(i + k) % each];
        out.push_back({from, to, away / static_cast<double>(others)});
      }
    }
  return out;
}

/// What the latencies and the estimate of a collective need to know of its flows' paths.
struct Paths {
  bool nvlink = true;           // between members of a node
  double across = 0;            // the largest latency of the links between two nodes
  double seconds_per_byte = 0;  // of the busiest link, at an occupancy of 1
};

Paths paths_of(const cluster::Cluster& cluster, std::span<const Id> devices,
               const std::vector<Flow>& flows) {
  Paths out;
  std::unordered_map<Id, double> load;
  for (const Flow& flow : flows) {
    const Id a = devices[at(flow.from)], b = devices[at(flow.to)];
    const cluster::Path& path = cluster.way(a, b, flow.bytes);
    if (cluster.devices()[a].node == cluster.devices()[b].node) {
      for (const Id link : path.links) out.nvlink = out.nvlink && cluster.links()[link].nvlink;
    } else {
      out.across = std::max(out.across, path.wire.value);
    }
    for (const Id link : path.links) load[link] += flow.bytes;
  }
  for (const auto& [link, bytes] : load)
    out.seconds_per_byte =
        std::max(out.seconds_per_byte, bytes / cluster.links()[link].bandwidth.value);
  return out;
}

class Choices {
 public:
  Choices(const cluster::Cluster& cluster, program::Move move, double bytes,
          std::span<const Id> devices, int root)
      : cluster_(cluster),
        move_(move),
        bytes_(bytes),
        devices_(devices),
        root_(root),
        channels_(cluster, devices) {}

  /// The library's protocols for this algorithm that the group can use.
  std::vector<LibraryCollective> of(program::Algorithm algorithm) const {
    std::vector<LibraryCollective> out;
    if (!cluster_.library().has(algorithm) || !can(algorithm)) return out;
    if (algorithm == program::Algorithm::in_network) return in_network_ways();
    const std::vector<Flow> flows = flows_of(algorithm);
    const Paths paths = paths_of(cluster_, devices_, flows);
    const auto n = static_cast<int>(devices_.size());
    const bool ring_sum =
        algorithm == program::Algorithm::ring && move_ == program::Move::all_reduce;
    for (const software::Protocol& protocol : cluster_.library().protocols) {
      if (protocol.algorithm != algorithm || (protocol.nvlink_only && !paths.nvlink)) continue;
      LibraryCollective& one = out.emplace_back();
      one.algorithm = algorithm;
      one.protocol = &protocol;
      one.flows = flows;
      one.occupancy = 1 / protocol.measured.efficiency;
      if (ring_sum) one.occupancy *= 1 + cluster_.library().copies / (2.0 * (n - 1));
      one.latency = latency(algorithm, protocol.measured, paths, true);
      one.seconds = one.latency + paths.seconds_per_byte * one.occupancy;
      one.estimate = latency(algorithm, protocol.estimated, paths, false) +
                     paths.seconds_per_byte / protocol.estimated.efficiency;
    }
    return out;
  }

 private:
  std::vector<LibraryCollective> in_network_ways() const {
    std::vector<LibraryCollective> out;
    for (const software::Protocol& protocol : cluster_.library().protocols) {
      if (protocol.algorithm != program::Algorithm::in_network) continue;
      const auto with = [&](const software::ProtocolTimes& times) {
        return costs::in_network(cluster_, move_, bytes_, devices_, root_, &times);
      };
      out.push_back(with(protocol.measured));
      out.back().protocol = &protocol;
      out.back().estimate = with(protocol.estimated).seconds;
    }
    return out;
  }
  bool can(program::Algorithm algorithm) const {
    if (move_ == program::Move::all_to_all || algorithm == program::Algorithm::direct)
      return move_ == program::Move::all_to_all && algorithm == program::Algorithm::direct;
    if (algorithm == program::Algorithm::ring) return true;
    if (algorithm == program::Algorithm::in_network)
      return collectives::serves(algorithm, move_) &&
             why_not_in_network(cluster_, devices_).empty();
    if (move_ != program::Move::all_reduce) return false;
    if (algorithm == program::Algorithm::double_tree) return channels_.nodes() > 1;
    for (std::size_t node = 0; node < channels_.nodes(); ++node)
      if (channels_.members(node).size() < 2 ||
          channels_.members(node).size() != channels_.most_members())
        return false;
    return std::all_of(devices_.begin(), devices_.end(),
                       [&](Id device) { return cluster_.on_summing_switch(device); });
  }
  std::vector<Flow> flows_of(program::Algorithm algorithm) const {
    if (algorithm == program::Algorithm::double_tree) return tree_flows(channels_, bytes_);
    if (algorithm == program::Algorithm::nvls) return nvls_flows(channels_, bytes_);
    if (algorithm == program::Algorithm::direct)
      return direct_flows(channels_, devices_.size(), bytes_);
    return ring_flows(channels_, move_, static_cast<int>(devices_.size()), bytes_, root_);
  }
  /// Seconds of one slice's way. `wires`: with the latencies of the links between nodes; the
  /// library's estimates have them in its own constants, and its constants of hops in a node
  /// always.
  double latency(program::Algorithm algorithm, const software::ProtocolTimes& times,
                 const Paths& paths, bool wires) const {
    const double in_node = (paths.nvlink ? times.nvlink : times.pcie).value;
    const double across = times.network.value + (wires ? paths.across : 0);
    const auto n = static_cast<double>(devices_.size());
    const auto nodes = static_cast<double>(channels_.nodes());
    const double height = std::log2(nodes);
    if (algorithm == program::Algorithm::direct) {  // all peers, and the wire once
      const auto here = static_cast<double>(channels_.most_members());
      const auto away = n - static_cast<double>(channels_.fewest_members());
      return times.base.value + (here - 1) * in_node + away * times.network.value +
             (wires ? paths.across : 0);
    }
    if (algorithm == program::Algorithm::nvls)
      return times.base.value + in_node + 2 * height * across;
    if (algorithm == program::Algorithm::double_tree)
      return times.base.value + 2 * ((n / nodes - 1) * in_node + height * across);
    const double ways = move_ == program::Move::all_reduce ? 2 : 1;
    return times.base.value + ways * ((n - nodes) * in_node + (nodes - 1) * across);
  }

  const cluster::Cluster& cluster_;
  program::Move move_;
  double bytes_;
  std::span<const Id> devices_;
  int root_;
  Channels channels_;
};

constexpr program::Algorithm algorithms[] = {
    program::Algorithm::ring, program::Algorithm::double_tree, program::Algorithm::nvls,
    program::Algorithm::in_network, program::Algorithm::direct};

}  // namespace

bool library_runs(const cluster::Cluster& cluster, program::Algorithm algorithm,
                  program::Move move) {
  const software::Library& library = cluster.library();
  if (move == program::Move::all_to_all) return library.has(program::Algorithm::direct);
  if (collectives::only_direct(move)) return false;
  if (algorithm == program::Algorithm::in_network)
    return collectives::serves(algorithm, move) && library.runs_sums_of(algorithm);
  return algorithm == program::Algorithm::automatic ? !library.protocols.empty()
                                                    : library.has(algorithm);
}

std::vector<LibraryCollective> library_choices(const cluster::Cluster& cluster, program::Move move,
                                               double bytes, std::span<const Id> devices,
                                               int root) {
  const Choices choices(cluster, move, bytes, devices, root);
  std::vector<LibraryCollective> out;
  for (const program::Algorithm one : algorithms)
    for (LibraryCollective& choice : choices.of(one)) out.push_back(std::move(choice));
  return out;
}

LibraryCollective library_collective(const cluster::Cluster& cluster, program::Move move,
                                     program::Algorithm algorithm, double bytes,
                                     std::span<const Id> devices, int root,
                                     const std::string& protocol) {
  assert(library_runs(cluster, algorithm, move) && devices.size() > 1);
  if (cluster.library().protocols.empty())
    return in_network(cluster, move, bytes, devices, root, nullptr);
  std::vector<LibraryCollective> all;
  if (algorithm != program::Algorithm::automatic)
    all = Choices(cluster, move, bytes, devices, root).of(algorithm);
  if (all.empty()) all = library_choices(cluster, move, bytes, devices, root);
  if (!protocol.empty()) {
    std::vector<std::string> known;
    for (const LibraryCollective& one : all) known.push_back(one.protocol->name);
    std::erase_if(all,
                  [&](const LibraryCollective& one) { return one.protocol->name != protocol; });
    if (all.empty()) {
      std::sort(known.begin(), known.end());
      known.erase(std::unique(known.begin(), known.end()), known.end());
      throw InputError(
          fmt::format("protocol \"{}\": {} has none of this name for {} in this group; "
                      "it has {}",
                      protocol, cluster.library().name, name_of(move), fmt::join(known, ", ")));
    }
  }
  return *std::min_element(all.begin(), all.end(),
                           [](const LibraryCollective& a, const LibraryCollective& b) {
                             return a.estimate < b.estimate;
                           });
}

program::Algorithm algorithm_run(const cluster::Cluster& cluster, program::Move move,
                                 program::Algorithm algorithm, std::int64_t bytes,
                                 const std::vector<std::vector<Id>>& devices) {
  if (algorithm != program::Algorithm::automatic) return algorithm;
  if (library_runs(cluster, algorithm, move)) {
    for (const std::vector<Id>& group : devices)
      if (group.size() > 1)
        algorithm = library_collective(cluster, move, algorithm, static_cast<double>(bytes), group)
                        .algorithm;
    return algorithm;
  }
  std::vector<Id> node_of;
  for (const Id device : devices.empty() ? std::vector<Id>{} : devices[0])
    node_of.push_back(cluster.devices()[device].node);
  return collectives::choose(move, bytes, node_of);
}

}  // namespace rehearse::costs
