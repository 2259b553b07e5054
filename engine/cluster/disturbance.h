// What goes wrong in a run, as pure functions of a seed: jitter on compute, persistent stragglers,
// jitter on transfers, slow links. Keyed by (rank, step, op), not by time, so the dry run, the
// simulator and a real run are disturbed identically however fast each of them is. Factors multiply
// durations: 1 is undisturbed, 2 takes twice as long.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/random.h"
#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

/// The largest sigma of jitter: at 5 the median factor is 4e-6 and one in a thousand is above 19.
constexpr double most_jitter = 5;

struct Straggler {
  Id rank = 0;
  double factor = 1;
};
struct SlowLink {
  std::string link = {};  // a directed link of the cluster by name
  double factor = 1;
};

/// The [disturb] table of a job.
struct Disturbance {
  std::uint64_t seed = 1;
  double compute_sigma = 0;  // log-normal, mean 1, one draw per (rank, step, local op)
  std::vector<Straggler> stragglers = {};
  double straggler_probability = 0;  // each rank is a persistent straggler with this probability
  double straggler_factor = 1.5;     // ... and then takes this many times as long
  double link_sigma = 0;  // log-normal, mean 1, one draw per rendezvous or put: (rank, step, op)
  std::vector<SlowLink> slow_links = {};
};

/// A Disturbance made ready for `world_size` ranks. Immutable; safe to share between threads.
class Disturber {
 public:
  /// Throws InputError on a rank beyond the world, a factor <= 0, a negative sigma, a probability
  /// outside [0, 1].
  Disturber(const Disturbance& disturbance, int world_size);

  /// Factor on the duration of a local op (compute, kernel, update) of a rank. `op` is its index in
  /// its role.
  double compute_factor(Id rank, int step, Id op) const;
  /// out[i] = compute_factor(ranks[i], step, op).
  void compute_factors(std::span<const Id> ranks, int step, Id op, std::span<double> out) const;
  /// Factor on the duration of a transfer: one draw for all of a collective group, a send with its
  /// receive, or a put. `rank` is the lowest rank that takes part (a put: its sender), `op` the
  /// index of its op in its role.
  double link_factor(Id rank, int step, Id op) const;
  /// Part of the factor that persists: what makes a rank a straggler.
  double straggler_factor(Id rank) const { return persistent_[rank]; }
  bool quiet_compute() const { return quiet_compute_; }  // every compute_factor is 1
  bool quiet_links() const { return link_.sigma() == 0; }

 private:
  std::uint64_t seed_ = 0;
  LogNormal compute_, link_;
  std::vector<double> persistent_ = {};
  bool quiet_compute_ = true, persistent_quiet_ = true;
};

/// By rank: how many times as long its local work takes because the job says that it is a
/// straggler; empty: none is. Ranks that become stragglers by chance are not known before a run.
std::vector<double> rank_slowdowns(const Disturbance& disturbance, std::size_t world_size);
/// By link of the cluster: how many times as long it takes (1 = as described). Divide its bandwidth
/// by this. Throws InputError that names the nearest link when a name is unknown.
std::vector<double> link_slowdowns(const Disturbance& disturbance, const Cluster& cluster);

}  // namespace rehearse::cluster
