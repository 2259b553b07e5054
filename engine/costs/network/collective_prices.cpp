#include "engine/costs/network/collective_prices.h"

#include <algorithm>
#include <limits>

#include "engine/collectives/schedule.h"
#include "engine/costs/costs.h"
#include "engine/costs/network/in_network.h"
#include "engine/costs/network/library_collective.h"

namespace rehearse::costs {
namespace {

constexpr program::Algorithm candidates[] = {program::Algorithm::ring,
                                             program::Algorithm::hierarchical,
                                             program::Algorithm::halving_doubling,
                                             program::Algorithm::double_tree,
                                             program::Algorithm::nvls,
                                             program::Algorithm::in_network};

}  // namespace

bool considered(const cluster::Cluster& cluster, program::Algorithm algorithm, program::Move move,
                bool several_nodes) {
  if (collectives::only_direct(move)) return algorithm == program::Algorithm::direct;
  if (library_runs(cluster, program::Algorithm::automatic, move))
    return cluster.library().has(algorithm) && collectives::serves(algorithm, move);
  switch (algorithm) {
    case program::Algorithm::ring:
      return true;
    case program::Algorithm::hierarchical:
      return several_nodes;
    case program::Algorithm::halving_doubling:
      return collectives::serves(algorithm, move);
    case program::Algorithm::double_tree:  // why no all-reduce: see choose_collectives.cpp
      return move != program::Move::all_reduce && collectives::serves(algorithm, move);
    default:
      return false;
  }
}

std::size_t CollectivePrices::Hash::operator()(const Question& q) const {
  const auto& [groups, move, algorithm, elements, wire] = q;
  std::uint64_t h = static_cast<std::uint64_t>(elements) * 0x9e3779b97f4a7c15U;
  h ^= (std::uint64_t{groups} << 16 | static_cast<std::uint64_t>(move) << 10 |
        static_cast<std::uint64_t>(algorithm) << 5 | static_cast<std::uint64_t>(wire)) *
       0xc2b2ae3d27d4eb4fU;
  return static_cast<std::size_t>(h ^ h >> 29);
}

Id CollectivePrices::groups(const std::vector<std::vector<Id>>& devices,
                            const std::vector<int>& roots) {
  const auto known = known_sets_.find(std::tie(devices, roots));
  if (known != known_sets_.end()) return known->second;
  const Id number = static_cast<Id>(sets_.size());
  known_sets_.emplace(std::tuple(devices, roots), number);
  GroupSet set{devices, roots};
  for (const auto& group : devices) set.several_nodes = set.several_nodes || spans_nodes(group);
  sets_.push_back(std::move(set));
  return number;
}

bool CollectivePrices::spans_nodes(std::span<const Id> group) const {
  return std::any_of(group.begin(), group.end(), [&](Id d) {
    return cluster_.devices()[d].node != cluster_.devices()[group.front()].node;
  });
}

const std::string& CollectivePrices::why_not_in_network(Id groups) {
  GroupSet& set = sets_[groups];
  if (!set.why_not_in_network) {
    set.why_not_in_network.emplace();
    for (const std::vector<Id>& group : set.devices)
      if (set.why_not_in_network->empty() && spans_nodes(group))
        set.why_not_in_network = costs::why_not_in_network(cluster_, group);
  }
  return *set.why_not_in_network;
}

std::span<const double> CollectivePrices::seconds(Id groups, program::Move move,
                                                  program::Algorithm algorithm,
                                                  std::int64_t elements, program::DType wire) {
  const auto [it, fresh] = seconds_.try_emplace({groups, move, algorithm, elements, wire});
  if (fresh)
    it->second = collective_seconds(cluster_, move, algorithm, elements, wire,
                                    sets_[groups].devices, sets_[groups].roots, slow_);
  return it->second;
}

program::Algorithm CollectivePrices::fastest(Id groups, program::Move move, std::int64_t elements,
                                             program::DType wire) {
  const auto [it, fresh] = fastest_.try_emplace(
      {groups, move, program::Algorithm::automatic, elements, wire}, program::Algorithm::ring);
  if (!fresh) return it->second;
  if (collectives::only_direct(move)) return it->second = program::Algorithm::direct;
  if (library_runs(cluster_, program::Algorithm::automatic, move))
    return it->second = library_choice(groups, move, static_cast<double>(elements * size_of(wire)));
  double best = 0;
  for (const program::Algorithm algorithm : candidates) {
    if (!considered(cluster_, algorithm, move, sets_[groups].several_nodes)) continue;
    auto& known =
        (slow_.empty() ? seconds_ : undisturbed_)[{groups, move, algorithm, elements, wire}];
    if (known.empty())
      known = collective_seconds(cluster_, move, algorithm, elements, wire, sets_[groups].devices,
                                 sets_[groups].roots);
    const double slowest = *std::max_element(known.begin(), known.end());
    if (algorithm != program::Algorithm::ring && slowest >= best) continue;
    best = slowest, it->second = algorithm;
  }
  return it->second;
}

bool CollectivePrices::serves(Id groups, program::Move move, program::Algorithm algorithm) {
  if (!library_runs(cluster_, algorithm, move)) return true;
  const auto [it, fresh] = serves_.try_emplace({groups, move, algorithm}, false);
  if (fresh)
    it->second = std::ranges::any_of(sets_[groups].devices, [&](const std::vector<Id>& group) {
      return group.size() < 2 ||
             library_collective(cluster_, move, algorithm, 1, group).algorithm == algorithm;
    });
  return it->second;
}

program::Algorithm CollectivePrices::library_choice(Id groups, program::Move move,
                                                    double bytes) const {
  program::Algorithm best = program::Algorithm::ring;
  double least = std::numeric_limits<double>::infinity();
  for (const program::Algorithm algorithm : candidates) {
    if (!considered(cluster_, algorithm, move, true)) continue;
    double slowest = 0;
    for (const std::vector<Id>& group : sets_[groups].devices) {
      if (group.size() < 2) continue;
      const LibraryCollective one = library_collective(cluster_, move, algorithm, bytes, group);
      // A group that cannot use the algorithm uses another one, which is compared by itself.
      if (one.algorithm == algorithm) slowest = std::max(slowest, one.estimate);
    }
    if (slowest > 0 && slowest < least) least = slowest, best = algorithm;
  }
  return best;
}

}  // namespace rehearse::costs
