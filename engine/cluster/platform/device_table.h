// Device kinds: those of platforms/devices.toml, and those that a platform file has of its own.
#pragma once
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

/// The [[device]] entries of a file, each with a name of its own.
std::vector<DeviceKind> read_devices(const Config& file);
/// All kinds of platforms/devices.toml.
std::vector<DeviceKind> device_table();
/// The kind of this name; null: the table has none.
const DeviceKind* find_kind(const std::vector<DeviceKind>& table, const std::string& name);
/// What to say of a name that the table does not have: the nearest, and all that it has.
std::string unknown_kind(const std::vector<DeviceKind>& table, const std::string& name);

}  // namespace rehearse::cluster
