// How long each op takes when nothing but its own op is on the machine: the one place where work
// becomes seconds, for every executor. Compute comes from the model's exact counts and the device's
// efficiency curve, or from a measured profile; memory-bound kernels and updates from the bytes
// they touch; communication from the paths of the cluster and the schedule of the collective.
//
// What sits on a link. A transfer of a collective's round takes its path's latency plus, over the
// links of its path, the largest (bytes on the link / its bandwidth), where the bytes on a link are
// those of all transfers of the same round of *all* sibling groups of the op: eight data-parallel
// groups that leave a node through one NIC share it, as if they were always in the same round. Ops
// of other lanes and of other roles are not on the link: they are what sim/ is for. A member begins
// a round when its own transfers of the rounds before have ended; it never waits for another group.
// Where a collective has more than 16,384 transfers, like rounds are looked at once, and each lasts
// as long as its slowest transfer.
//
// Costs are kept by class: one row of seconds per (role, distinct work), a row being one number
// where all ranks of the role are alike.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/collectives/schedule.h"
#include "engine/costs/collective_prices.h"
#include "engine/costs/profile.h"
#include "engine/link/link.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::costs {

class Costs {
 public:
  /// rank_to_device: by rank; empty = rank i on device i. `profile` and `slow` (by link, see
  /// link_slowdowns; empty: none) may be left out. Throws InputError when ranks outnumber devices,
  /// a device is named twice on a cluster without shared cores, or a device lacks the program's
  /// dtype. With `prices` (made for this cluster and these slow links) collectives are looked up
  /// there, and bytes_sent and link_bytes leave them out: for searches. `pace`: by rank, how many
  /// times as long its local work takes (see rank_slowdowns; empty: once): also for searches, since
  /// executors disturb what costs say undisturbed.
  Costs(const link::LinkedProgram& linked, const model::ModelSpec& model,
        const cluster::Cluster& cluster, std::span<const Id> rank_to_device,
        plan::Optimizer optimizer = plan::Optimizer::adamw, const Profile* profile = nullptr,
        std::span<const double> slow = {}, CollectivePrices* prices = nullptr,
        std::span<const double> pace = {});
  Costs(Costs&&) noexcept;
  ~Costs();

  /// Undisturbed seconds of an op by place: one number when all places are alike, otherwise one per
  /// rank of the role. A Take costs nothing. A rendezvous costs all who meet the same. Entries of
  /// collectives are by place too (the cost of its group).
  std::span<const double> seconds(Id role, Id op) const;
  double seconds(Id role, Id op, Id place) const;
  /// Bytes this rank puts on the wire in this op (exact, from the schedule); same shape.
  std::span<const double> bytes_sent(Id role, Id op) const;
  /// Seconds of a transfer between two ranks that has the path to itself: what a Put that replies
  /// costs, whose receiver is known only at run time (`seconds` gives its farthest).
  double transfer_seconds(Id from_rank, Id to_rank, std::int64_t bytes) const;
  /// What `automatic` became. Collectives only.
  program::Algorithm algorithm(Id role, Id op) const;
  /// Bytes on each link of the cluster that one step of the whole program sends.
  std::vector<double> link_bytes() const;

  /// Every local op's seconds come from a measured profile or a calibrated device.
  bool calibrated() const;
  std::span<const Id> rank_to_device() const;
  std::size_t classes() const;  // distinct rows, for tests

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Seconds of a collective alone on its members' devices by the closed form above; one result per
/// group, groups together on the links. `devices[g]` are group g's members in order. Also what the
/// planner and tests use.
std::vector<double> collective_seconds(const cluster::Cluster& cluster, program::Move move,
                                       program::Algorithm algorithm, std::int64_t elements,
                                       program::DType wire,
                                       const std::vector<std::vector<Id>>& devices,
                                       std::span<const int> roots = {},
                                       std::span<const double> slow = {});
/// The schedule a group plays: node_of from the cluster, `automatic` resolved by `choose`.
std::unique_ptr<const collectives::Schedule> schedule_on(const cluster::Cluster& cluster,
                                                         program::Move move,
                                                         program::Algorithm algorithm,
                                                         std::int64_t elements, program::DType wire,
                                                         std::span<const Id> devices, int root = 0);

}  // namespace rehearse::costs
