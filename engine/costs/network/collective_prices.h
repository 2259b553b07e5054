// A cache of the costs of collectives on one cluster. A search over plans prices the same groups
// and sizes many times. Groups are numbered first, so that a price is one look-up.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/program/program.h"

namespace rehearse::costs {

class CollectivePrices {
 public:
  /// `slow`: [link] factor on the time of its bytes (cluster::link_slowdowns); empty: 1. `cluster`
  /// must outlive this object.
  explicit CollectivePrices(const cluster::Cluster& cluster, std::span<const double> slow = {})
      : cluster_(cluster), slow_(slow.begin(), slow.end()) {}

  /// The number of a set of groups that communicate at the same time. `devices`: [group][member].
  /// `roots`: [group] index of the root; empty: the first member.
  Id groups(const std::vector<std::vector<Id>>& devices, const std::vector<int>& roots);
  /// [group]: seconds as of collective_seconds, with slow links.
  std::span<const double> seconds(Id groups, program::Move move, program::Algorithm algorithm,
                                  std::int64_t elements, program::DType wire);
  /// The algorithm that choose_collectives puts in place of `automatic`: the fastest without slow
  /// links; by the library's own estimate where it runs collectives itself.
  program::Algorithm fastest(Id groups, program::Move move, std::int64_t elements,
                             program::DType wire);
  /// Whether the algorithm carries out this move for some group. A library has algorithms that need
  /// several nodes, or a switch that sums; what it does not run itself serves every group.
  bool serves(Id groups, program::Move move, program::Algorithm algorithm);
  /// Why the switches between the members of some group on several nodes cannot add; empty: all
  /// can.
  const std::string& why_not_in_network(Id groups);
  /// Whether some group spans several nodes.
  bool several_nodes(Id groups) const { return sets_[groups].several_nodes; }

 private:
  bool spans_nodes(std::span<const Id> group) const;
  program::Algorithm library_choice(Id groups, program::Move move, double bytes) const;
  struct GroupSet {
    std::vector<std::vector<Id>> devices = {};
    std::vector<int> roots = {};
    bool several_nodes = false;
    std::optional<std::string> why_not_in_network = {};  // none: not asked yet
  };
  using Question = std::tuple<Id, program::Move, program::Algorithm, std::int64_t, program::DType>;
  struct Hash {
    std::size_t operator()(const Question& q) const;
  };
  const cluster::Cluster& cluster_;
  std::vector<double> slow_;
  std::vector<GroupSet> sets_ = {};
  std::map<std::tuple<std::vector<std::vector<Id>>, std::vector<int>>, Id, std::less<>>
      known_sets_ = {};
  std::unordered_map<Question, std::vector<double>, Hash> seconds_ = {}, undisturbed_ = {};
  std::unordered_map<Question, program::Algorithm, Hash> fastest_ = {};
  std::map<std::tuple<Id, program::Move, program::Algorithm>, bool> serves_ = {};
};

/// Whether choose_collectives considers an algorithm for a move. A library that runs collectives
/// itself has only its own.
bool considered(const cluster::Cluster& cluster, program::Algorithm algorithm, program::Move move,
                bool several_nodes);

}  // namespace rehearse::costs
