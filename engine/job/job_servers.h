// How many servers a job has whose method sums gradients over machines (BytePS), and which devices
// they take.
#pragma once
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/job/job_keys.h"
#include "engine/methods/strategy.h"

namespace rehearse::job {

/// The stated number of servers. Without the key: 1 for parameter servers; for servers that sum
/// over machines none on one machine, else one (own) or one for each machine (colocated).
/// `node_of`: the nodes of the job's devices in rank order, workers and servers; empty: not known
/// yet. Throws InputError when mixed servers are not counted.
int servers_of(const Config& method, const JobKeys& keys, const methods::Combines& can,
               const std::vector<Id>& node_of);

/// The devices in rank order. Colocated servers take the last device of each node, after all
/// workers, unless the job lists its devices or all ranks are on one node.
std::vector<Id> with_servers_last(std::vector<Id> devices, const JobKeys& keys, int servers,
                                  const cluster::Cluster& cluster);

}  // namespace rehearse::job
