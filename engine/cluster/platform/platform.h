// The keys of platform files, which describe clusters by node templates and devices by a table.
// load_cluster (cluster.h) reads the files; docs/platforms.md documents every key.
#pragma once
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/cluster/cluster.h"
#include "engine/cluster/platform/platform_changes.h"

namespace rehearse::cluster {

/// A platform with the changes of a job. Throws InputError.
Cluster load_cluster(const std::string& name_or_path, const PlatformChanges& changes);

/// All keys that a platform file can have. A test compares the documentation with them.
std::vector<Config::Key> platform_keys();

}  // namespace rehearse::cluster
