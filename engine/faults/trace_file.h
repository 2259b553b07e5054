// Fault traces as files: strict TOML with a version (docs/faults.md). What is written reads back as
// the same trace, to the bit.
#pragma once
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/cluster/cluster.h"
#include "engine/faults/event.h"

namespace rehearse::faults {

/// The version of the format that this program writes and reads.
constexpr int trace_version = 1;
/// The most events of a trace.
constexpr std::size_t most_events = 1'000'000;

/// What a trace may name. `cluster` null: devices, links and nodes are not checked.
struct Bounds {
  int world_size = 0;
  const cluster::Cluster* cluster = nullptr;
};

/// Reads a trace. Throws InputError (file, line, key) for an unknown version, key or kind, for an
/// event that lacks what its kind needs or has what it cannot have, and for a target that does not
/// exist.
Trace load_trace(const std::string& path, const Bounds& bounds);
/// The text that load_trace reads.
std::string to_toml(const Trace& trace);
/// All keys that a trace file can have. A test compares docs/faults.md with them.
std::vector<Config::Key> trace_keys();

}  // namespace rehearse::faults
