// Where ranks share the cores of a host, a profile holds times taken with some number of ranks and
// threads at work, and Costs stretches them to the number that runs now, for executors that do not
// share cores themselves. Here they do share, so that part is taken out again.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"

namespace rehearse::sim {

class Crowding {
 public:
  /// `profile` may be null: nothing to take out.
  Crowding(const cluster::Cluster& cluster, const costs::Profile* profile,
           std::span<const Id> rank_to_device)
      : cores_(profile == nullptr ? 0 : cluster.shared_cores()),
        threads_(profile == nullptr ? 1 : std::max(1, profile->threads_per_rank)),
        then_(profile == nullptr ? 1 : load(std::max(1, profile->ranks))),
        now_(cluster.devices().size(), 1) {
    std::vector<int> on_node(static_cast<std::size_t>(std::max(1, cluster.nodes())));
    for (const Id device : rank_to_device) ++on_node[cluster.devices()[device].node];
    for (Id device = 0; device < now_.size(); ++device)
      now_[device] = load(on_node[cluster.devices()[device].node]);
  }
  int threads() const { return threads_; }
  /// Divide the seconds of local work by this: what one of its threads needs of a core.
  double of_work(Id device) const { return now_[device]; }
  /// Divide the seconds of a transfer by this: as measured.
  double of_transfer(Id device) const { return now_[device] / then_; }

 private:
  /// Threads a core, at least 1.
  double load(int ranks) const {
    return cores_ == 0 ? 1 : std::max(1.0, static_cast<double>(ranks) * threads_ / cores_);
  }
  int cores_ = 0, threads_ = 1;
  double then_ = 1;
  std::vector<double> now_ = {};
};

}  // namespace rehearse::sim
