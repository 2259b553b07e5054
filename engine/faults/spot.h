// Reads traces of spot instances that others recorded, as fault traces: an instance that is taken
// away is a node that dies, one that comes is a node that returns.
#pragma once
#include <string>
#include <vector>

#include "engine/faults/event.h"

namespace rehearse::faults {

/// Bamboo's format (Thorpe et al., NSDI 2023): lines `time_ms,add|remove,name`, with or without a
/// header. An instance takes the lowest free node, and names are forgotten when they are removed.
/// Nodes that are not there at time 0 die at time 0. Instances beyond `nodes` are left out. Throws
/// InputError (file, line).
Trace load_bamboo(const std::string& path, int nodes);
Trace parse_bamboo(const std::string& text, const std::string& file, int nodes);

/// SkyPilot's format (spot-traces of Wu et al., NSDI 2024): {"metadata": {"gap_seconds": G},
/// "data": [number of instances after 0, G, 2G, ... seconds]}. The nodes with the highest numbers
/// go first. Throws InputError.
Trace load_skypilot(const std::string& path, int nodes);
Trace parse_skypilot(const std::string& text, const std::string& file, int nodes);

/// By node: for how many of the first `duration` seconds its spot instance is there. Other deaths
/// of nodes do not count: such nodes stay rented.
std::vector<double> spot_seconds(const Trace& trace, int nodes, Seconds duration);

}  // namespace rehearse::faults
