#include "engine/costs/device/storage_prices.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/errors.h"

namespace rehearse::costs {
namespace {

/// `job_key`: the key of a job that needs this. `key`: that of the platform.
[[noreturn]] void unknown(const cluster::Cluster& cluster, const char* job_key, const char* what,
                          const char* key) {
  throw InputError(
      fmt::format("{}: cluster \"{}\" does not say {}: its file needs {} (docs/platforms.md)",
                  job_key, cluster.name(), what, key));
}

}  // namespace

bool takes_snapshot(const program::Role& role, const program::Op& op) {
  const auto life = [&](program::Slot slot) {
    return role.storages[role.views[find(op, slot)->view].storage].life;
  };
  return std::holds_alternative<program::Copy>(op.work) &&
         life(program::Slot::source) == program::Life::state &&
         life(program::Slot::target) == program::Life::buffer;
}

StoragePrices::StoragePrices(const cluster::Cluster& cluster, std::span<const Id> rank_to_device)
    : cluster_(cluster),
      ranks_on_(static_cast<std::size_t>(cluster.nodes())),
      ranks_(static_cast<double>(rank_to_device.size())) {
  for (const Id device : rank_to_device) ++ranks_on_[cluster.devices()[device].node];
  if (std::ranges::count_if(ranks_on_, [](int ranks) { return ranks > 0; }) > 1)
    networks_ = cluster.networks();
}

double StoragePrices::copy(Id node, std::int64_t bytes) const {
  const double rate = cluster_.host_of(node).link.value;
  if (rate <= 0)
    unknown(cluster_, "checkpoint.kind, method.offload or method.offload_activations",
            "how fast a device reaches its host's memory", "nodes.host_link");
  return static_cast<double>(bytes) / rate;
}

double StoragePrices::snapshot(Id node, std::int64_t bytes, BytesPerSecond staging) const {
  const double link = copy(node, bytes);
  return staging.value > 0 ? std::max(link, static_cast<double>(bytes) / staging.value) : link;
}

double StoragePrices::update(Id node, std::int64_t bytes) const {
  const double rate = cluster_.host_of(node).bandwidth.value;
  if (rate <= 0)
    unknown(cluster_, "method.offload", "how fast its hosts read and write their memory",
            "nodes.host_bandwidth");
  return static_cast<double>(bytes) * ranks_on_[node] / rate;
}

double StoragePrices::save(Id node, std::int64_t bytes, const program::Save& save) const {
  const program::Medium to = save.to;
  if (to == program::Medium::memory) return copy(node, bytes);
  if (to == program::Medium::peers) {
    if (networks_.empty()) return copy(node, bytes);
    const double sent = static_cast<double>(bytes) * ranks_on_[node] * (save.group - 1);
    return std::max(copy(node, bytes), sent / networks_[node].value);
  }
  const bool local = to == program::Medium::local_disk;
  const cluster::Disk& disk = local ? cluster_.host_of(node).disk : cluster_.shared_disk();
  if (!disk.known())
    unknown(cluster_, "checkpoint.kind", "how fast its disks are",
            local ? "nodes.disk" : "[shared_disk]");
  const double of_node = static_cast<double>(bytes) * ranks_on_[node];
  if (local) return of_node / disk.write.value;
  // All ranks write at once, and every byte of theirs has the same part of the disk's rate.
  const double all = static_cast<double>(bytes) * ranks_ / disk.write.value;
  return networks_.empty() ? all : std::max(all, of_node / networks_[node].value);
}

}  // namespace rehearse::costs
