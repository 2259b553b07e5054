// The closed form of costs.h: transfers of one round that share links, and whole collectives.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// Transfers of one round. Call add for each, then finish, then clear.
class Contention {
 public:
  Contention(const cluster::Cluster& cluster, std::span<const double> slow)
      : cluster_(cluster), slow_(slow), load_(cluster.links().size(), 0.0) {}
  void add(Id from_device, Id to_device, double bytes);
  /// `bytes` over each of these links at one rate. They must outlive the next call of finish.
  void add(std::span<const Id> links, double bytes, double latency = 0);
  /// Sets `seconds` to those of each transfer, in the order in which they were added. Without
  /// `latencies`, only what the bytes take.
  void finish(std::vector<double>& seconds, bool latencies = true);
  /// Resets the bytes on all links. First adds `times` those bytes to `total`, [link], unless null.
  void clear(double times = 0, std::vector<double>* total = nullptr);

 private:
  struct Flow {
    std::span<const Id> links = {};
    double latency = 0;
  };
  const cluster::Cluster& cluster_;
  std::span<const double> slow_;
  std::vector<double> load_;      // [link]: bytes of this round
  std::vector<Id> touched_ = {};  // links with bytes in this round
  std::vector<Flow> flows_ = {};
};

/// Seconds that a link needs for the bytes. `slow`: [link] factor; empty: 1.
double seconds_on(const cluster::Cluster& cluster, Id link, std::int64_t bytes,
                  std::span<const double> slow);
/// For how long the links that the ways from one device to all receivers have in common are busy
/// with the bytes.
double leaving_seconds(const cluster::Cluster& cluster, Id from, std::span<const Id> receivers,
                       std::int64_t bytes, std::span<const double> slow);

struct CollectiveCost {
  std::vector<double> seconds = {};                  // [group]
  std::vector<std::vector<std::int64_t>> sent = {};  // [group][member]: elements sent
  std::vector<double> link_bytes = {};               // [link]: bytes of all groups together
};
/// `devices`: [group][member]. `roots`: [group] index of the root; empty: 0. `slow`: [link] factor
/// on the time of its bytes; empty: 1.
CollectiveCost collective_cost(const cluster::Cluster& cluster, program::Move move,
                               program::Algorithm algorithm, std::int64_t elements,
                               program::DType wire, const std::vector<std::vector<Id>>& devices,
                               std::span<const int> roots, std::span<const double> slow);

}  // namespace rehearse::costs
