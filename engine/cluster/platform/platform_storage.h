// Reads what a platform file says of storage: host memory and disks of nodes, the shared file
// system. Internal to engine/cluster.
#pragma once
#include "engine/base/files/config.h"
#include "engine/cluster/storage.h"

namespace rehearse::cluster {

/// The keys host_memory, host_link and disk of a [[nodes]] table. `widest` is the bandwidth of the
/// widest cable of its first device that is not NVLink (0: it has none). It is the default of
/// host_link where the table states host_memory. Throws InputError.
Host read_host(const Config& nodes, BytesPerSecond widest);

/// The table [shared_disk] of a platform; not known when the file has none. Throws InputError.
Disk read_shared_disk(const Config& file);

}  // namespace rehearse::cluster
