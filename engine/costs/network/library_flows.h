// The flows of a collective that the communication library runs (library_collective.h): how much
// each member sends to each other one, over all channels together.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// What one member sends to another during the whole collective.
struct Flow {
  int from = 0, to = 0;  // members
  double bytes = 0;      // of payload
};

/// The members of a group by node, in the order in which the group names the nodes.
std::vector<std::vector<int>> members_by_node(const cluster::Cluster& cluster,
                                              std::span<const Id> devices);

/// The members of a group by node, and cycles through the members of each node.
class Channels {
 public:
  Channels(const cluster::Cluster& cluster, std::span<const Id> devices);

  std::size_t nodes() const { return nodes_.size(); }
  const std::vector<int>& members(std::size_t node) const { return nodes_[node]; }
  std::size_t most_members() const { return most_members_; }
  std::size_t fewest_members() const { return fewest_members_; }
  /// On one node, one channel for each cycle. On several, each cycle is cut at each of its members
  /// in turn, so that every NIC carries an equal share.
  std::size_t count() const { return most_cycles_ * (nodes() > 1 ? most_members_ : 1); }
  /// The channel's way through a node, from the member with the local index `first` (modulo the
  /// number of members) onwards.
  std::vector<int> way(std::size_t node, std::size_t channel, std::size_t first) const;
  /// The local index of the member with which the channel begins in the first node, or with which
  /// it talks to other nodes in a tree.
  std::size_t head(std::size_t channel) const { return channel / most_cycles_; }
  std::size_t local_index(std::size_t node, int member) const;

 private:
  std::vector<std::vector<int>> nodes_ = {};                // [node]: members
  std::vector<std::vector<std::vector<int>>> cycles_ = {};  // [node][cycle]: members
  std::size_t most_cycles_ = 1, most_members_ = 1, fewest_members_ = SIZE_MAX;
};

/// `bytes`: of the whole tensor. `root`: an index of a member, where the move has one.
std::vector<Flow> ring_flows(const Channels& channels, program::Move move, int n, double bytes,
                             int root);
/// Sums go up and the result goes down: along chains inside nodes, along two trees over nodes.
std::vector<Flow> tree_flows(const Channels& channels, double bytes);
/// Each member sends the tensor to the switch once and receives it once, plus its part of the sum
/// in both directions; over several nodes it does so twice, before and after the trees. Those bytes
/// are spread over the other members, behind the same switch.
std::vector<Flow> nvls_flows(const Channels& channels, double bytes);
/// All members send their parts to all others at the same time. In large groups a member sends what
/// leaves its node to one device on each of a few nodes, others than its neighbours do. So each
/// device, and each node together, still sends and receives as much.
std::vector<Flow> direct_flows(const Channels& channels, std::size_t n, double bytes);

}  // namespace rehearse::costs
