// Distances d(i, j) of Sun 2026, eq. 1: the length of the shortest path between two devices in the
// cluster graph with edge weights 1 / bandwidth, in seconds per byte. If a profile measured pairs
// of devices, the graph is the paper's: a vertex for each device and an edge 1 / measured bandwidth
// for each pair; pairs without a measurement keep the cluster's distance. Dijkstra (Boost.Graph)
// then finds the shortest paths.
#pragma once
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"

namespace rehearse::planner {

class Distances {
 public:
  /// With more devices than this there is no table: each distance is computed from the cluster when
  /// asked for, and measured pairs are ignored.
  static constexpr std::size_t table_limit = 256;

  /// Distances between the listed devices, in both directions. All functions take indices into
  /// `devices`. `cluster` must outlive this object. `profile`: null for none. Throws InputError
  /// when there is no path.
  Distances(const cluster::Cluster& cluster, std::span<const Id> devices,
            const costs::Profile* profile);
  double operator()(std::size_t from, std::size_t to) const {
    return seconds_.empty() ? look_up(from, to) : seconds_[from * devices_.size() + to];
  }
  /// Seconds per byte of a transfer that has the path to itself: 1 / bandwidth of the slowest link
  /// on it, or of the pair if it was measured.
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
  std::vector<double> seconds_ = {}, slowest_ = {};  // per byte, [from][to]; empty: no table
};

/// Eq. 1: the sum over l of c_l x d(pi(l), pi(l + 1)), seconds. `bytes[l]` is c_l; `place[l]` is
/// the index of layer l's device in `d`. The last layer needs no c_l.
double eq1(std::span<const double> bytes, std::span<const Id> place, const Distances& d);

}  // namespace rehearse::planner
