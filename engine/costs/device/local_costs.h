// Seconds of the ops of a program that a rank runs alone: passes, kernels, updates, copies and
// saves, on the device of the rank. Internal to Costs.
#pragma once
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/device/local_prices.h"
#include "engine/costs/device/storage_prices.h"
#include "engine/costs/profile.h"
#include "engine/link/link.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::costs {

/// The device of each rank: as `given`, or rank i on device i where `given` is empty. Throws
/// InputError when there are more ranks than devices, or a device is named twice on a cluster
/// without shared cores.
std::vector<Id> devices_of_ranks(const program::Program& program, const cluster::Cluster& cluster,
                                 std::vector<Id> given);

class LocalCosts {
 public:
  /// `rank_to_device`: by rank. `profile` may be null. All references must outlive this object.
  LocalCosts(const link::OrderedProgram& linked, const model::ModelSpec& model,
             const cluster::Cluster& cluster, std::vector<Id> rank_to_device,
             plan::Optimizer optimizer, const Profile* profile);

  double seconds(Id role, Id op, Id device);
  /// An op takes the same time on all devices that are alike in this respect.
  std::pair<Id, int> alike(const program::Role& role, const program::Op& op, Id device) const;

  /// Whether the profile has times of the device's kind.
  bool profiled(Id device) const { return profile_ && covered_[devices()[device].kind]; }
  /// Factor on measured seconds: how busy the node's shared cores are with these ranks, relative to
  /// the ranks of the measurement.
  double crowding(Id device) const;
  /// Whether all seconds so far come from a profile of real ranks, or from a calibrated device and
  /// a software with which step times were measured.
  bool calibrated() const { return calibrated_; }

 private:
  std::span<const cluster::Device> devices() const { return cluster_.devices(); }
  const StoragePrices& storage();
  LocalPrice price(Id role, Id op, Id device);
  /// Whether the op uses the host or a disk, whose rates are those of the platform file: a copy, a
  /// save, or a norm or update that the host computes. Where ranks share the cores of a host, the
  /// device is the host.
  bool on_host(const program::Role& role, const program::Op& op) const;

  const link::OrderedProgram& linked_;
  const model::ModelSpec& model_;
  const cluster::Cluster& cluster_;
  const std::vector<Id> device_of_;  // by rank
  const plan::Optimizer optimizer_;
  const Profile* profile_;
  const model::TensorSplit split_;
  LocalPrices prices_;
  std::optional<StoragePrices> storage_ = {};  // of the first copy or save
  std::vector<int> ranks_on_node_ = {};
  std::vector<bool> covered_ = {};  // [device kind]: the profile has times of it
  bool calibrated_ = true;
};

}  // namespace rehearse::costs
