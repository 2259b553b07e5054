#include "engine/costs/network/library_collective.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/collectives/schedule.h"
#include "engine/costs/network/in_network.h"

namespace rehearse::costs {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

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
      // A library knows one path between two members of a node: the widest, for all sizes.
      for (const Id link : cluster.path(a, b))
        out.nvlink = out.nvlink && cluster.links()[link].nvlink;
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
  if (collectives::only_direct(move) || algorithm == program::Algorithm::direct) return false;
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
