#include "engine/costs/network/library_flows.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "engine/collectives/schedule.h"
#include "engine/costs/network/rings.h"

namespace rehearse::costs {
namespace {

std::size_t index_of(int i) { return static_cast<std::size_t>(i); }

/// The members of a node in the order in which a ring visits them where no cables close one: from
/// the first device of the platform each time to the nearest that is left, as NCCL's search does.
/// In which order a group names its members makes no difference.
std::vector<int> tour(const cluster::Cluster& cluster, std::span<const Id> devices,
                      std::vector<int> left) {
  std::ranges::sort(left, {}, [&](int m) { return devices[index_of(m)]; });
  std::vector<int> way = {left.front()};
  left.erase(left.begin());
  while (!left.empty()) {
    const auto distance = [&](int m) {
      double sum = 0;
      for (const Id link : cluster.path(devices[index_of(way.back())], devices[index_of(m)]))
        sum += 1 / cluster.links()[link].bandwidth.value;
      return sum;
    };
    const auto nearest = std::ranges::min_element(left, {}, distance);
    way.push_back(*nearest);
    left.erase(nearest);
  }
  return way;
}

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

}  // namespace

std::vector<std::vector<int>> members_by_node(const cluster::Cluster& cluster,
                                              std::span<const Id> devices) {
  std::vector<std::vector<int>> out;
  std::unordered_map<Id, std::size_t> number;
  for (std::size_t m = 0; m < devices.size(); ++m) {
    const auto [it, fresh] = number.try_emplace(cluster.devices()[devices[m]].node, out.size());
    if (fresh) out.emplace_back();
    out[it->second].push_back(static_cast<int>(m));
  }
  return out;
}

Channels::Channels(const cluster::Cluster& cluster, std::span<const Id> devices)
    : nodes_(members_by_node(cluster, devices)) {
  for (const std::vector<int>& members : nodes_) {
    std::vector<Id> local;
    for (const int m : members) local.push_back(devices[index_of(m)]);
    std::vector<std::vector<int>> cycles = rings_of(cluster, local);
    for (std::vector<int>& cycle : cycles)
      for (int& m : cycle) m = members[index_of(m)];
    if (cycles.empty()) cycles.push_back(tour(cluster, devices, members));
    most_cycles_ = std::max(most_cycles_, cycles.size());
    most_members_ = std::max(most_members_, members.size());
    fewest_members_ = std::min(fewest_members_, members.size());
    cycles_.push_back(std::move(cycles));
  }
}

std::vector<int> Channels::way(std::size_t node, std::size_t channel, std::size_t first) const {
  const std::vector<int>& members = nodes_[node];
  std::vector<int> cycle = cycles_[node][channel % cycles_[node].size()];
  const int start = members[first % members.size()];
  std::rotate(cycle.begin(), std::find(cycle.begin(), cycle.end(), start), cycle.end());
  return cycle;
}

std::size_t Channels::local_index(std::size_t node, int member) const {
  const auto it = std::find(nodes_[node].begin(), nodes_[node].end(), member);
  return static_cast<std::size_t>(it - nodes_[node].begin());
}

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
        const int below = heads[node], above = heads[index_of(parent[node])];
        flows.add(below, above, share / 2), flows.add(above, below, share / 2);
      }
  }
  return flows.take();
}

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
        const int below = channels.members(node)[i],
                  above = channels.members(index_of(parent[node]))[i];
        const double share = bytes / static_cast<double>(channels.most_members()) / 2;
        flows.add(below, above, share), flows.add(above, below, share);
      }
  return flows.take();
}

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

}  // namespace rehearse::costs
