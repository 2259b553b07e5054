// Costs: how many seconds each op takes when no other op uses the machine. All executors take their
// seconds from here. Compute comes from a measured profile, or else from the model's FLOPs and the
// device's efficiency curve. Memory-bound kernels and updates come from the bytes they touch.
// Communication comes from the paths of the cluster and the schedule of the collective.
//
// Closed form of a collective. A transfer of b bytes in one round takes
//
//   seconds = latency of its path + max over its links of (bytes on the link / its bandwidth)
//
// The bytes on a link are those of all transfers of this round in all groups of the op. If eight
// data-parallel groups leave a node through one NIC, each transfer takes 8 b / bandwidth there. The
// form assumes that all groups are always in the same round; it ignores ops of other lanes and
// roles, which sim/ simulates. A member begins a round when its own transfers of earlier rounds
// have ended; it never waits for another group. In a collective of more than 16,384 transfers,
// equal rounds are computed once, and each lasts as long as its group's slowest transfer.
//
// Ops with equal work in one role share a row of seconds. A row has one entry per rank of the role,
// or a single entry if all ranks take equally long.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/collectives/schedule.h"
#include "engine/costs/network/collective_prices.h"
#include "engine/costs/network/rings.h"
#include "engine/costs/profile.h"
#include "engine/link/link.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::costs {

/// What seconds depend on besides the program, the model and the cluster. Costs copies no more than
/// `rank_to_device` and `slow`: the rest must outlive it.
struct Conditions {
  std::span<const Id> rank_to_device = {};  // [rank]; empty: rank i is on device i
  plan::Optimizer optimizer = plan::Optimizer::adamw;
  const Profile* profile = nullptr;  // null: the device table decides alone
  /// [link] factor on the time of its bytes (cluster::link_slowdowns); empty: 1.
  std::span<const double> slow = {};
  /// Null, or made for this cluster and these slow links. With it, collectives are looked up there,
  /// and bytes_sent and link_bytes omit them. For searches.
  CollectivePrices* prices = nullptr;
  /// [rank] factor on the time of local work (cluster::rank_slowdowns); empty: 1. For searches:
  /// executors apply disturbances to undisturbed costs themselves.
  std::span<const double> pace = {};
};

/// Seconds and bytes of every op of a linked program. A place is a rank's index in its role.
class Costs {
 public:
  /// Throws InputError when there are more ranks than devices, a device is named twice on a cluster
  /// without shared cores, or a device lacks the program's dtype.
  Costs(const link::OrderedProgram& linked, const model::ModelSpec& model,
        const cluster::Cluster& cluster, const Conditions& on = {});
  Costs(Costs&&) noexcept;
  ~Costs();

  /// Seconds of an op without disturbances: one per rank of the role, or one if all are equal. A
  /// Take costs 0. All members of a rendezvous have the same seconds; in a collective these are the
  /// seconds of the rank's group.
  std::span<const double> seconds(Id role, Id op) const;
  double seconds(Id role, Id op, Id place) const;
  /// Bytes that a rank sends in this op, exact, from the schedule: one per rank, or one if all are
  /// equal.
  std::span<const double> bytes_sent(Id role, Id op) const;
  /// Seconds of a transfer between two ranks when nothing else uses its path. For a Put that
  /// replies: its receiver is known only at run time (`seconds` gives the slowest receiver's).
  double transfer_seconds(Id from_rank, Id to_rank, std::int64_t bytes) const;
  /// Of a Put that replies: for how long it keeps busy the links that all its possible ways share,
  /// when nothing else uses them.
  double leaving_seconds(Id role, Id op, Id place) const;
  /// Seconds that the profile has of a collective between these devices, or of a transfer from one
  /// to another, on as many ranks as it was measured with. Nothing: it has none.
  std::optional<double> measured_collective(program::Move move, std::span<const Id> devices,
                                            std::int64_t bytes) const;
  std::optional<double> measured_transfer(Id from, Id to, std::int64_t bytes) const;
  /// The collective's algorithm, never `automatic`. For collectives only.
  program::Algorithm algorithm(Id role, Id op) const;
  /// [link of the cluster]: bytes that one step of the whole program sends over it.
  std::vector<double> link_bytes() const;

  /// Whether every local op's seconds come from a measured profile, or from a calibrated device and
  /// a software with which step times were measured.
  bool calibrated() const;
  std::span<const Id> rank_to_device() const;
  std::size_t classes() const;  // distinct rows, for tests

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Seconds of a collective by the closed form above, one result per group. All groups run at the
/// same time and share links; nothing else runs. `devices[g]`: the devices of group g's members, in
/// order. `roots[g]`: the root's index in it; empty: 0. `slow`: as for Costs.
std::vector<double> collective_seconds(const cluster::Cluster& cluster, program::Move move,
                                       program::Algorithm algorithm, std::int64_t elements,
                                       program::DType wire,
                                       const std::vector<std::vector<Id>>& devices,
                                       std::span<const int> roots = {},
                                       std::span<const double> slow = {});
/// The schedule of one group on its devices. `wiring`: wiring_of(devices), by which a ring travels.
/// `automatic` becomes what collectives::choose returns.
std::unique_ptr<const collectives::Schedule> schedule_on(const cluster::Cluster& cluster,
                                                         program::Move move,
                                                         program::Algorithm algorithm,
                                                         std::int64_t elements, program::DType wire,
                                                         std::span<const Id> devices, int root = 0,
                                                         Wiring wiring = {});

}  // namespace rehearse::costs
