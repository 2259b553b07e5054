// Removes from a cost the slowdown by shared cores, because the simulator adds that slowdown
// itself. A profile holds times that were measured with a number of ranks and threads on the cores
// of a host. Costs multiplies those times by
//
//   (threads per core now) / (threads per core when measured), each at least 1
//
// for executors that do not simulate the sharing of cores.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"

namespace rehearse::sim {

class Crowding {
 public:
  /// `profile` may be null: then the factors are 1.
  Crowding(const cluster::Cluster& cluster, const costs::Profile* profile,
           std::span<const Id> rank_to_device)
      : cores_(profile == nullptr ? 0 : cluster.shared_cores()),
        threads_(profile == nullptr ? 1 : std::max(1, profile->threads_per_rank)),
        now_(cluster.devices().size(), 1) {
    std::vector<int> on_node(static_cast<std::size_t>(std::max(1, cluster.nodes())));
    for (const Id device : rank_to_device) ++on_node[cluster.devices()[device].node];
    for (Id device = 0; device < now_.size(); ++device)
      now_[device] = load(on_node[cluster.devices()[device].node]);
  }
  int threads() const { return threads_; }
  /// The seconds of local work, divided by this, are what one of its threads needs on a core of its
  /// own.
  double of_work(Id device) const { return now_[device]; }

 private:
  /// Threads per core when `ranks` ranks run on a host; at least 1.
  double load(int ranks) const {
    return cores_ == 0 ? 1 : std::max(1.0, static_cast<double>(ranks) * threads_ / cores_);
  }
  int cores_ = 0, threads_ = 1;   // of a host (0: not shared), of a rank
  std::vector<double> now_ = {};  // load now, by device
};

}  // namespace rehearse::sim
