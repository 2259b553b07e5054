// The section [torus] of a platform file: its sizes, and the cables between neighbours.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/base/units.h"

namespace rehearse::cluster {

struct TorusShape {
  std::vector<int> sizes = {};
  BytesPerSecond bandwidth = {};  // of each cable and direction
  Seconds latency = {};
  int devices() const;  // the sizes' product
};

/// The sizes after the colon of a cluster's name, "4x4x8". `whole`: the name, for messages. Throws
/// InputError.
std::vector<int> torus_sizes(const std::string& text, const std::string& whole);
/// none: the file has no torus. `sizes`: those of the cluster's name, in place of the file's;
/// empty: the name has none. Throws InputError.
std::optional<TorusShape> read_torus(const Config& file, const std::vector<int>& sizes);

}  // namespace rehearse::cluster
