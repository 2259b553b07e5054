// Seconds of what goes through the host: copies to and from its memory, updates that it computes,
// and writes to disks. A rank shares the host and the disks with the ranks that use them at the
// same moment, which are all of them:
//
//   copy          bytes / host_link of the node
//   snapshot      bytes / min(host_link of the node, the software's rate of staging)
//   update        bytes x ranks of the node / host_bandwidth
//   local disk    bytes x ranks of the node / write rate of the node's disk
//   shared disk   bytes x ranks of the node / min(the node's network, write rate / nodes)
//   memory        as copy
//   peers         the longer of copy and (group - 1) x bytes x ranks of the node / its network
//
// The rates come from the platform file (engine/cluster/storage.h).
#pragma once
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// Whether the op copies state to a buffer, for a checkpoint. Other copies bring gradients or
/// weights, or move state to another plan.
bool takes_snapshot(const program::Role& role, const program::Op& op);

class StoragePrices {
 public:
  /// `rank_to_device`: by rank. `cluster` must outlive this object.
  StoragePrices(const cluster::Cluster& cluster, std::span<const Id> rank_to_device);

  /// A device of the node copies `bytes` to or from host memory. Throws InputError when the
  /// platform does not say how fast.
  double copy(Id node, std::int64_t bytes) const;
  /// The same for a snapshot of state, by a framework that copies no faster than `staging` (0: as
  /// fast as the link).
  double snapshot(Id node, std::int64_t bytes, BytesPerSecond staging) const;
  /// The host's cores compute a norm or an update for a rank, for which they read and write
  /// `bytes`: such work is bound by memory (ZeRO-Offload, section 5). Throws InputError when the
  /// platform does not say how fast.
  double update(Id node, std::int64_t bytes) const;
  /// A rank on the node writes `bytes`, and so do all others at once. Throws InputError when the
  /// platform does not say how fast.
  double save(Id node, std::int64_t bytes, const program::Save& save) const;

 private:
  const cluster::Cluster& cluster_;
  std::vector<int> ranks_on_ = {};  // by node
  double ranks_ = 0;
  std::vector<BytesPerSecond> networks_ = {};
};

}  // namespace rehearse::costs
