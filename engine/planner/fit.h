// Checks whether a program fits into the memory of its devices, and finds a change of the plan that
// makes it fit. Every change that is recommended was compiled and linked before.
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

/// The memory need of the fullest device of one kind; ranks on the same device add up. Bytes.
struct DeviceNeed {
  std::string kind = {};
  Id device = none, rank = none;  // the device, and the first rank on it
  std::int64_t need = 0, capacity = 0, reserve = 0;
  std::int64_t usable() const { return std::max<std::int64_t>(0, capacity - reserve); }
  bool fits() const { return need <= usable(); }
};
/// One entry for each kind in use, in the cluster's order of kinds.
std::vector<DeviceNeed> device_needs(const link::LinkedProgram& linked,
                                     const cluster::Cluster& cluster,
                                     std::span<const Id> rank_to_device);

/// A change of a plan that makes it fit.
struct Remedy {
  std::vector<std::string> changes = {};  // in the form of --set: "method.recompute=true"
  std::int64_t need = 0;                  // bytes of the fullest device after the change
};
/// "25.8 GB", "25.8 GB less 1.5 GB reserve".
std::string capacity_text(std::int64_t capacity, std::int64_t reserve);

/// The largest number of changed plans that find_remedy compiles. It does not compile plans whose
/// lower bound of memory is too large (bounds.h), and plans with more than `most_tried_passes`
/// passes (plan::passes_of), unless the original plan has as many.
inline constexpr int most_remedies = 16;
inline constexpr std::int64_t most_tried_passes = 15'000;
/// The first change that makes the plan fit, in this order: more micro-batches, recomputation, a
/// higher ZeRO level, combinations of these, another mesh of the same world, a smaller batch. None
/// when no change fits. `keep_method`: only changes that keep the method's name.
std::optional<Remedy> find_remedy(const plan::Plan& plan, const model::ModelSpec& model,
                                  const cluster::Cluster& cluster, bool keep_method = false);

/// Throws InputError when the program does not fit. The message names the device, its need, the
/// three largest storages and the remedy.
void check_memory(const link::LinkedProgram& linked, const plan::Plan& plan,
                  const model::ModelSpec& model, const cluster::Cluster& cluster);

}  // namespace rehearse::planner
