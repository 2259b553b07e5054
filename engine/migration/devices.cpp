// Migration and the cluster: which devices are near each other, and who is which rank afterwards.
#include <fmt/format.h>

#include <utility>

#include "engine/base/errors.h"
#include "engine/migration/migration.h"

namespace rehearse::migration {

std::function<double(Id, Id)> distance_on(const cluster::Cluster& cluster,
                                          std::vector<Id> rank_to_device) {
  return [&cluster, devices = std::move(rank_to_device)](Id from, Id to) {
    const Id a = devices.at(from), b = devices.at(to);
    if (a == b) return 0.0;
    return cluster.latency(a, b).value + 1e6 / cluster.bandwidth(a, b).value;
  };
}

std::vector<Id> players(const std::vector<Id>& old_devices, const std::vector<Id>& new_devices) {
  std::vector<Id> plays;
  std::vector<bool> taken(new_devices.size());
  for (const Id device : old_devices) {
    std::size_t rank = 0;
    while (rank < new_devices.size() && (taken[rank] || new_devices[rank] != device)) ++rank;
    if (rank == new_devices.size())
      throw InputError(
          fmt::format("the new plan puts no rank on device {}, where the old one has one", device));
    taken[rank] = true;
    plays.push_back(static_cast<Id>(rank));
  }
  return plays;
}

}  // namespace rehearse::migration
