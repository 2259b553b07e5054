// What the root of a star pays for adding: a direct reduce brings n - 1 tensors to one member (a
// server). It reads each of them and its sum so far and writes the sum, at the rate of its memory
// and while more arrives, so the reduce takes as long as the slower of network and memory. Other
// algorithms add at most two tensors at a time, which their network hides. Ranks that share cores
// pay for their bytes there (sim/crowding.h).
#pragma once
#include <span>

#include "engine/cluster/cluster.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// Seconds in which the root of a collective among `devices` adds up `bytes` of each other member.
inline double adding_seconds(const cluster::Cluster& cluster, program::Move move,
                             program::Algorithm algorithm, double bytes,
                             std::span<const Id> devices, int root) {
  if (move != program::Move::reduce || algorithm != program::Algorithm::direct ||
      cluster.shared_cores() > 0 || devices.empty())
    return 0;
  const cluster::DeviceKind& kind = cluster.kind_of(devices[static_cast<std::size_t>(root)]);
  return 3 * static_cast<double>(devices.size() - 1) * bytes /
         (kind.memory_bandwidth.value * kind.memory_efficiency);
}

}  // namespace rehearse::costs
