// Transfers that are under way together and the links they share: the inside of costs.h.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// Transfers of one round: add all, then finish (seconds of each, in the order added), then clear.
class Contention {
 public:
  Contention(const cluster::Cluster& cluster, std::span<const double> slow)
      : cluster_(cluster), slow_(slow), load_(cluster.links().size(), 0.0) {}
  void add(Id from_device, Id to_device, double bytes);
  void finish(std::vector<double>& seconds);
  /// Forgets the loads; adds `times` of them to `total` by link.
  void clear(double times = 0, std::vector<double>* total = nullptr);

 private:
  struct Flow {
    std::span<const Id> path = {};
  };
  const cluster::Cluster& cluster_;
  std::span<const double> slow_;
  std::vector<double> load_;
  std::vector<Id> touched_ = {};
  std::vector<Flow> flows_ = {};
};

struct CollectiveCost {
  std::vector<double> seconds = {};                  // by group
  std::vector<std::vector<std::int64_t>> sent = {};  // by group, member: elements
  std::vector<double> link_bytes = {};               // by link of the cluster, all groups
};
CollectiveCost collective_cost(const cluster::Cluster& cluster, program::Move move,
                               program::Algorithm algorithm, std::int64_t elements,
                               program::DType wire, const std::vector<std::vector<Id>>& devices,
                               std::span<const int> roots, std::span<const double> slow);

}  // namespace rehearse::costs
