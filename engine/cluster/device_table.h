// Device kinds: those of platforms/devices.toml, and those that a platform file has of its own.
#pragma once
#include <string>
#include <vector>

#include "engine/base/config.h"
#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

/// The [[device]] entries of a file, each with a name of its own.
std::vector<DeviceKind> read_devices(const Config& file);
/// All kinds of platforms/devices.toml.
std::vector<DeviceKind> device_table();
/// The device kind of this name in the table. If there is none, writes an error message to
/// `complaint`.
const DeviceKind& pick(const std::vector<DeviceKind>& table, const std::string& name,
                       std::string* complaint);

}  // namespace rehearse::cluster
