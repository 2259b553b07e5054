// Platform files: clusters described by templates of nodes, devices by a table. load_cluster reads
// them; the format is documented, key by key, in docs/platforms.md.
#pragma once
#include <vector>

#include "engine/base/config.h"
#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

/// Every key that a platform file can have: the documentation is tested against it.
std::vector<Config::Key> platform_keys();

}  // namespace rehearse::cluster
