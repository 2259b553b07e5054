#include "engine/planner/memory/needs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/refusal.h"
#include "engine/base/units.h"
#include "engine/costs/device/storage_prices.h"
#include "engine/planner/memory/remedy.h"

namespace rehearse::planner {
namespace {

std::string text(std::int64_t bytes) { return to_text(Bytes(static_cast<double>(bytes))); }

/// The device that exceeds its memory by the largest factor; null: all fit.
const DeviceNeed* fullest(const std::vector<DeviceNeed>& needs) {
  const DeviceNeed* worst = nullptr;
  auto share = [](const DeviceNeed& n) {
    return static_cast<double>(n.need) / std::max(1.0, static_cast<double>(n.usable()));
  };
  for (const DeviceNeed& n : needs)
    if (!n.fits() && (worst == nullptr || share(n) > share(*worst))) worst = &n;
  return worst;
}

std::string would_fit(const Remedy& remedy) {
  return fmt::format("this would fit, with {}: --set {}", text(remedy.need),
                     fmt::join(remedy.changes, " --set "));
}

std::string brief_text(const DeviceNeed& worst, const std::optional<Remedy>& remedy) {
  return fmt::format(
      "needs {} on {}, which has {} to use; {}", text(worst.need), worst.kind, text(worst.usable()),
      remedy ? fmt::format("fits with --set {}", fmt::join(remedy->changes, " --set "))
             : std::string("no change was found that fits"));
}

/// How many times a rank's snapshot is in a host's memory: itself, and the last two checkpoints if
/// nodes keep them there, with the parts of the other nodes of a group.
int copies_in_memory(const plan::Checkpoints& how) {
  const bool keeps = how.to == program::Medium::memory || how.to == program::Medium::peers;
  return 1 + (keeps ? 2 * how.group : 0);
}

/// Throws InputError for a host that lacks memory. Names what would help, if that was found to.
void refuse_host(const HostNeed& host, const plan::Plan& plan, const model::ModelSpec& model,
                 const cluster::Cluster& cluster) {
  std::vector<std::string> users;
  Trial without{plan, {}};
  if (plan.exchange.offload != plan::Offload::none) {
    users.emplace_back("the optimizer");
    without.plan.exchange.offload = plan::Offload::none;
    without.changes.emplace_back("method.offload=none");
  }
  if (plan.schedule.hosted.on) {
    users.emplace_back("activations");
    without.plan.schedule.hosted.on = false;
    without.changes.emplace_back("method.offload_activations=false");
  }
  std::string help;
  if (plan.checkpoints.every > 0) {
    help = fmt::format(": use checkpoint.kind = \"sharded\", which needs none{}",
                       users.empty() ? "" : " for checkpoints");
    users.emplace_back("checkpoints");
  } else {
    const auto remedy = find_remedy(without, model, cluster);
    help = "; " + (remedy ? would_fit(*remedy)
                          : fmt::format("nor was a way found to do without {}",
                                        users.size() > 1 ? "them" : "it"));
  }
  help = fmt::format("{}{}", fmt::join(users, " and "), help);
  throw InputError(fmt::format("memory: the host of node {} has {}, its ranks need {} for {}",
                               host.node, text(host.capacity), text(host.need), help));
}

}  // namespace

std::vector<DeviceNeed> device_needs(const link::LinkedProgram& linked,
                                     const cluster::Cluster& cluster,
                                     std::span<const Id> rank_to_device) {
  std::map<Id, DeviceNeed> by_device;
  for (Id rank = 0; rank < linked.role_of.size(); ++rank) {
    const Id device = rank_to_device.empty() ? rank : rank_to_device[rank];
    DeviceNeed& n =
        by_device.try_emplace(device, DeviceNeed{.device = device, .rank = rank}).first->second;
    const link::RoleMemory& memory = linked.memory[linked.role_of[rank]];
    n.need += memory.total();
    for (std::size_t p = 0; p < n.parts.size(); ++p) n.parts[p] += memory.parts[p];
  }
  std::map<Id, DeviceNeed> by_kind;
  for (auto& [device, n] : by_device) {
    const Id kind = cluster.devices()[device].kind;
    n.kind = cluster.kinds()[kind].name;
    n.capacity = static_cast<std::int64_t>(cluster.kinds()[kind].memory.value);
    n.reserve = static_cast<std::int64_t>(cluster.kinds()[kind].reserve.value);
    const auto [it, first] = by_kind.try_emplace(kind, n);
    if (!first && n.need > it->second.need) it->second = n;
  }
  std::vector<DeviceNeed> out;
  for (auto& [kind, n] : by_kind) out.push_back(std::move(n));
  return out;
}

std::vector<HostNeed> host_needs(const link::LinkedProgram& linked, const cluster::Cluster& cluster,
                                 const plan::Plan& plan) {
  const std::vector<Id>& rank_to_device = plan.placement.rank_to_device;
  std::map<Id, std::int64_t> need;  // by node
  for (Id r = 0; r < linked.program.roles.size(); ++r)
    for (const Id rank : linked.program.roles[r].ranks)
      if (linked.memory[r].host > 0) {
        const Id device = rank_to_device.empty() ? rank : rank_to_device[rank];
        const link::RoleMemory& memory = linked.memory[r];
        // Ranks that share the host's cores also compute in its memory.
        need[cluster.devices()[device].node] +=
            memory.host + memory.snapshots * (copies_in_memory(plan.checkpoints) - 1) +
            (cluster.shared_cores() > 0 ? memory.total() : 0);
      }
  std::vector<HostNeed> out;
  for (const auto& [node, bytes] : need)
    out.push_back({node, bytes, static_cast<std::int64_t>(cluster.host_of(node).memory.value)});
  return out;
}

std::optional<HostNeed> short_host(const link::LinkedProgram& linked,
                                   const cluster::Cluster& cluster, const plan::Plan& plan) {
  for (const HostNeed& host : host_needs(linked, cluster, plan))
    if (host.capacity > 0 && host.need > host.capacity) return host;
  return std::nullopt;
}

void check_hosts(const link::LinkedProgram& linked, const cluster::Cluster& cluster,
                 const plan::Plan& plan) {
  if (const auto host = short_host(linked, cluster, plan))
    throw Refused({"memory of hosts",
                   fmt::format("memory of hosts: that of node {} has {}, its ranks need {}",
                               host->node, text(host->capacity), text(host->need))});
}

bool reaches_hosts(const cluster::Cluster& cluster) {
  for (Id node = 0; node < static_cast<Id>(cluster.nodes()); ++node)
    if (cluster.host_of(node).link.value == 0) return false;
  return true;
}

bool can_offload(const cluster::Cluster& cluster) {
  if (!reaches_hosts(cluster)) return false;
  for (Id node = 0; node < static_cast<Id>(cluster.nodes()); ++node)
    if (cluster.host_of(node).bandwidth.value == 0 && cluster.shared_cores() == 0) return false;
  return true;
}

std::string parts_text(const link::Parts& parts) {
  std::vector<std::string> out;
  for (std::size_t p = 0; p < parts.size(); ++p)
    if (parts[p] > 0)
      out.push_back(fmt::format("{} {}", name_of(static_cast<link::Part>(p)), text(parts[p])));
  return fmt::format("{}", fmt::join(out, ", "));
}

std::string capacity_text(std::int64_t capacity, std::int64_t reserve) {
  return reserve == 0 ? text(capacity)
                      : fmt::format("{} less {} reserve", text(capacity), text(reserve));
}

void check_memory(const link::LinkedProgram& linked, const plan::Plan& plan,
                  const model::ModelSpec& model, const cluster::Cluster& cluster) {
  if (const auto host = short_host(linked, cluster, plan)) refuse_host(*host, plan, model, cluster);
  const auto needs = device_needs(linked, cluster, plan.placement.rank_to_device);
  const DeviceNeed* worst = fullest(needs);
  if (worst == nullptr) return;
  const bool updates = plan.exchange.offload != plan::Offload::none;
  if ((updates && !can_offload(cluster)) || (plan.schedule.hosted.on && !reaches_hosts(cluster)))
    for (Id node = 0; node < static_cast<Id>(cluster.nodes()); ++node) {
      const costs::StoragePrices prices(cluster, plan.placement.rank_to_device);
      // No advice on memory helps where these throw an InputError, which says what is not known.
      prices.copy(node, 0);
      if (updates) prices.update(node, 0);
    }
  const Id role = linked.role_of[worst->rank];
  const auto remedy = find_remedy({plan, {}}, model, cluster);
  const std::string all = fmt::format(
      "memory: {} ({}, {}) needs {} for role {} of method \"{}\": {}; {}",
      cluster.devices()[worst->device].name, worst->kind,
      capacity_text(worst->capacity, worst->reserve), text(worst->need),
      linked.program.roles[role].name, plan.method, parts_text(worst->parts),
      remedy ? would_fit(*remedy)
             : std::string(
                   "no number of micro-batches, recomputation, sharding of states, optimizer or "
                   "activations on the host, other mesh of these devices or smaller batch was "
                   "found to fit"));
  throw DoesNotFit(all, brief_text(*worst, remedy),
                   remedy ? remedy->changes : std::vector<std::string>{});
}

}  // namespace rehearse::planner
