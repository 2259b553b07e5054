// Which sections a platform file has. A misspelt one is named before what it leaves undefined.
// Internal to engine/cluster.
#pragma once
#include "engine/base/files/config.h"

namespace rehearse::cluster {

/// Throws InputError when a key of the file is a misspelt section.
void check_sections(const Config& file);

/// Throws InputError when a [[nodes]] names no devices; names the key that was meant to.
void check_devices(const Config& node);

}  // namespace rehearse::cluster
