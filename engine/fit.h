// Does a program fit into its devices' memory, and if not, what would make it fit. Advice is found
// by compiling and linking changed plans, never guessed.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster.h"
#include "engine/link.h"
#include "engine/model.h"
#include "engine/plan.h"

namespace rehearse {

/// What the fullest device of a kind must hold; ranks that share a device add up.
struct DeviceNeed {
  std::string kind = {};
  Id device = none, rank = none;  // the device and its first rank
  std::int64_t need = 0, capacity = 0;
  bool fits() const { return need <= capacity; }
};
/// One entry a kind in use, in the cluster's order of kinds.
std::vector<DeviceNeed> device_needs(const LinkedProgram& linked, const Cluster& cluster,
                                     std::span<const Id> rank_to_device);

/// A change of a plan that makes it fit.
struct Remedy {
  std::vector<std::string> changes = {};  // "method.recompute=true", as --set takes them
  std::int64_t need = 0;                  // of the fullest device then
};
/// The first of these that fits, in this order: more micro-batches, recomputation, sharding of
/// states (ZeRO), their combinations, then other meshes of the same world. Empty when none does.
std::optional<Remedy> find_remedy(const Plan& plan, const ModelSpec& model, const Cluster& cluster);

/// Throws InputError that names the device, the need, the three largest storages and the remedy.
void check_memory(const LinkedProgram& linked, const Plan& plan, const ModelSpec& model,
                  const Cluster& cluster);

}  // namespace rehearse
