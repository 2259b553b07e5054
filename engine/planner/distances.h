// Distances of Sun 2026, eq. 1: d(i, j) is the length of the shortest path between two devices in
// the cluster graph, an edge weighing 1 / bandwidth: seconds a byte. Where a profile measured pairs
// of devices, the graph is the paper's own: a vertex for each device, an edge 1 / measured
// bandwidth for each pair (Boost.Graph, Dijkstra); pairs that nobody measured keep the cluster's.
#pragma once
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"

namespace rehearse::planner {

class Distances {
 public:
  /// More devices than this get no table: distances are looked up in the cluster one by one, and
  /// what a profile measured is left out.
  static constexpr std::size_t table_limit = 256;

  /// Between the listed devices, in both directions; known by their place in the list. `cluster`
  /// must outlive it. Throws InputError when there is no path.
  Distances(const cluster::Cluster& cluster, std::span<const Id> devices,
            const costs::Profile* profile);
  double operator()(std::size_t from, std::size_t to) const {
    return seconds_.empty() ? look_up(from, to) : seconds_[from * devices_.size() + to];
  }
  /// Seconds a byte of a transfer that has the path to itself: of the slowest link on it, or of the
  /// pair where it was measured.
  double slowest(std::size_t from, std::size_t to) const {
    return slowest_.empty() ? look_up_slowest(from, to) : slowest_[from * devices_.size() + to];
  }
  std::size_t size() const { return devices_.size(); }
  bool tabled() const { return !seconds_.empty(); }

 private:
  double look_up(std::size_t from, std::size_t to) const;
  double look_up_slowest(std::size_t from, std::size_t to) const;

  const cluster::Cluster& cluster_;
  std::vector<Id> devices_;
  std::vector<double> seconds_ = {}, slowest_ = {};  // a byte; [from][to]
};

/// Eq. 1: sum over the seams l of c_l x d(pi(l), pi(l + 1)). `bytes[l]` is c_l, `place[l]` the
/// place of layer l's device in the list of `d`; one number of bytes fewer than there are layers
/// is enough.
double eq1(std::span<const double> bytes, std::span<const Id> place, const Distances& d);

}  // namespace rehearse::planner
