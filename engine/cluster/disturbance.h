// Disturbances of a run, as pure functions of a seed: jitter of compute, persistent stragglers,
// jitter of transfers, slow links. Draws depend on (rank, step, op) and not on time, so the dry
// run, the simulator and a real run get the same ones. Factors multiply durations: 1 is
// undisturbed, 2 takes twice as long.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/numbers/random.h"
#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

/// The largest sigma of jitter. With sigma 5, the median factor is 4e-6, and one factor in a
/// thousand is above 19.
constexpr double most_jitter = 5;

struct Straggler {
  Id rank = 0;
  double factor = 1;
};
struct SlowLink {
  std::string link = {};  // name of a directed link of the cluster
  double factor = 1;
};

/// The [disturb] table of a job.
struct Disturbance {
  std::uint64_t seed = 1;
  double compute_sigma = 0;  // log-normal, mean 1, one draw per (rank, step, local op)
  std::vector<Straggler> stragglers = {};
  double straggler_probability = 0;  // each rank is a persistent straggler with this probability
  double straggler_factor = 1.5;     // by which such a rank's compute takes longer
  double link_sigma = 0;  // log-normal, mean 1, one draw per rendezvous or put: (rank, step, op)
  std::vector<SlowLink> slow_links = {};
};

/// A Disturbance prepared for `world_size` ranks. Immutable; threads may share it.
class Disturber {
 public:
  /// Throws InputError for a rank beyond the world, a factor <= 0, a sigma outside [0,
  /// most_jitter], or a probability outside [0, 1].
  Disturber(const Disturbance& disturbance, int world_size);

  /// Factor of the duration of a local op (compute, kernel, update). `op` is the op's index in its
  /// role.
  double compute_factor(Id rank, int step, Id op) const;
  /// out[i] = compute_factor(ranks[i], step, op).
  void compute_factors(std::span<const Id> ranks, int step, Id op, std::span<double> out) const;
  /// Factor of the duration of a transfer: one draw for a whole group of a collective, for a send
  /// with its receive, or for a put. `rank` is the lowest rank that takes part (of a put: the
  /// sender), `op` the index of that rank's op in its role.
  double link_factor(Id rank, int step, Id op) const;
  /// The persistent part of compute_factor; not 1 for stragglers.
  double straggler_factor(Id rank) const { return persistent_[rank]; }
  bool quiet_compute() const { return quiet_compute_; }    // every compute_factor is 1
  bool quiet_links() const { return link_.sigma() == 0; }  // every link_factor is 1

 private:
  std::uint64_t seed_ = 0;
  LogNormal compute_, link_;
  std::vector<double> persistent_ = {};
  bool quiet_compute_ = true, persistent_quiet_ = true;
};

/// By rank: the factor of the stragglers that the job declares; empty: it declares none. Excludes
/// ranks that become stragglers by chance, because a run does not know them beforehand.
std::vector<double> rank_slowdowns(const Disturbance& disturbance, std::size_t world_size);
/// By link of the cluster: the factor by which it is slowed down (1: not slowed down). Divide its
/// bandwidth by this. Throws InputError for a factor <= 0, or for an unknown link (names the
/// nearest one).
std::vector<double> link_slowdowns(const Disturbance& disturbance, const Cluster& cluster);

}  // namespace rehearse::cluster
