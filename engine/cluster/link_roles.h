// Links that play the same role: their names are equal but for the numbers ("node3/nic0>fabric" and
// "node5/nic1>fabric"), and so are their bandwidths. One buys such links together.
#pragma once
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

struct LinkRole {
  std::string name = {};          // "node*/nic* - fabric"
  BytesPerSecond bandwidth = {};  // of each direction
  std::vector<Id> links = {};     // in ascending order; both directions of each cable
};

/// In the order of the cluster's links.
std::vector<LinkRole> link_roles(const Cluster& cluster);

}  // namespace rehearse::cluster
