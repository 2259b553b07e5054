// Checks whether a program fits into the memory of its devices and hosts.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
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
  link::Parts parts = {};  // of need
  std::int64_t usable() const { return std::max<std::int64_t>(0, capacity - reserve); }
  bool fits() const { return need <= usable(); }
};
/// One entry for each kind in use, in the cluster's order of kinds.
std::vector<DeviceNeed> device_needs(const link::LinkedProgram& linked,
                                     const cluster::Cluster& cluster,
                                     std::span<const Id> rank_to_device);

/// "weights 248 MB, gradients 248 MB, activations 1.2 GB": the parts that are not empty.
std::string parts_text(const link::Parts& parts);

/// Bytes that the ranks of a node keep in the memory of its host.
struct HostNeed {
  Id node = none;
  std::int64_t need = 0, capacity = 0;  // capacity 0: not known
};
/// One entry for each node whose host holds anything.
std::vector<HostNeed> host_needs(const link::LinkedProgram& linked, const cluster::Cluster& cluster,
                                 const plan::Plan& plan);
/// The first node whose host has less memory than its ranks need; none: all have enough, or the
/// platform does not say how much.
std::optional<HostNeed> short_host(const link::LinkedProgram& linked,
                                   const cluster::Cluster& cluster, const plan::Plan& plan);

/// Whether the platform says what activations on the host need: how fast each host's link to its
/// devices is. And what an optimizer there needs: also how fast the host's memory is.
bool reaches_hosts(const cluster::Cluster& cluster);
bool can_offload(const cluster::Cluster& cluster);

/// Throws Refused, which names the host, where short_host finds one.
void check_hosts(const link::LinkedProgram& linked, const cluster::Cluster& cluster,
                 const plan::Plan& plan);

/// "25.8 GB", "25.8 GB less 1.5 GB reserve".
std::string capacity_text(std::int64_t capacity, std::int64_t reserve);

/// A program does not fit into the memory of a device. `brief`: need, memory and remedy, for tables
/// of many programs. `changes`: the remedy, as in Remedy; empty: none was found.
struct DoesNotFit : InputError {
  DoesNotFit(const std::string& text, std::string brief, std::vector<std::string> changes)
      : InputError(text), brief(std::move(brief)), changes(std::move(changes)) {}
  std::string brief;
  std::vector<std::string> changes;
};
/// Throws DoesNotFit, whose message names the device, its need, the parts and the remedy, or
/// InputError for a host without enough memory.
void check_memory(const link::LinkedProgram& linked, const plan::Plan& plan,
                  const model::ModelSpec& model, const cluster::Cluster& cluster);

}  // namespace rehearse::planner
