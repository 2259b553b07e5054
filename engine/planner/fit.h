// Does a program fit into its devices' memory, and if not, what would make it fit. Advice is found
// by compiling and linking changed plans, never guessed.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/link/link.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::planner {

/// What the fullest device of a kind must hold; ranks that share a device add up.
struct DeviceNeed {
  std::string kind = {};
  Id device = none, rank = none;  // the device and its first rank
  std::int64_t need = 0, capacity = 0, reserve = 0;
  std::int64_t usable() const { return std::max<std::int64_t>(0, capacity - reserve); }
  bool fits() const { return need <= usable(); }
};
/// One entry a kind in use, in the cluster's order of kinds.
std::vector<DeviceNeed> device_needs(const link::LinkedProgram& linked,
                                     const cluster::Cluster& cluster,
                                     std::span<const Id> rank_to_device);

/// A change of a plan that makes it fit.
struct Remedy {
  std::vector<std::string> changes = {};  // "method.recompute=true", as --set takes them
  std::int64_t need = 0;                  // of the fullest device then
};
/// "25.8 GB", "25.8 GB less 1.5 GB reserve".
std::string capacity_text(std::int64_t capacity, std::int64_t reserve);

/// Changed plans that a search for a remedy compiles at most. Those are left out before that whose
/// bytes are known to be too many by arithmetic, and those of more than `most_tried_passes` passes
/// (plan.h), or of more than the plan itself has.
inline constexpr int most_remedies = 16;
inline constexpr std::int64_t most_tried_passes = 15'000;
/// The first of these that fits, in this order: more micro-batches, recomputation, sharding of
/// states (ZeRO), their combinations, other meshes of the same world, a smaller batch. Empty when
/// none does.
std::optional<Remedy> find_remedy(const plan::Plan& plan, const model::ModelSpec& model,
                                  const cluster::Cluster& cluster, bool keep_method = false);

/// Throws InputError that names the device, the need, the three largest storages and the remedy.
void check_memory(const link::LinkedProgram& linked, const plan::Plan& plan,
                  const model::ModelSpec& model, const cluster::Cluster& cluster);

}  // namespace rehearse::planner
