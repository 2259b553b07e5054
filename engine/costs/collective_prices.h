// What collectives cost on one cluster, remembered: a search over plans prices the same groups and
// sizes again and again. Groups are interned first, so that a question is one look-up.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/program/program.h"

namespace rehearse::costs {

class CollectivePrices {
 public:
  /// `slow` by link, see link_slowdowns; empty: none. `cluster` must outlive it.
  explicit CollectivePrices(const cluster::Cluster& cluster, std::span<const double> slow = {})
      : cluster_(cluster), slow_(slow.begin(), slow.end()) {}

  /// A number for groups that communicate at the same time: devices by group, and each group's root
  /// (empty: the first member).
  Id groups(const std::vector<std::vector<Id>>& devices, const std::vector<int>& roots);
  /// Seconds by group, as collective_seconds, slow links included.
  std::span<const double> seconds(Id groups, program::Move move, program::Algorithm algorithm,
                                  std::int64_t elements, program::DType wire);
  /// What choose_collectives chooses for an `automatic` collective: on links as described.
  program::Algorithm fastest(Id groups, program::Move move, std::int64_t elements,
                             program::DType wire);
  bool several_nodes(Id groups) const { return sets_[groups].several_nodes; }

 private:
  struct GroupSet {
    std::vector<std::vector<Id>> devices = {};
    std::vector<int> roots = {};
    bool several_nodes = false;
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
};

/// Whether choose_collectives considers an algorithm for a move.
bool considered(program::Algorithm algorithm, program::Move move, bool several_nodes);

}  // namespace rehearse::costs
