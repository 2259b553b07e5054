// The links of a path by name, for tests.
#pragma once
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

inline std::vector<std::string> names_of(const Cluster& c, Id a, Id b) {
  std::vector<std::string> out;
  for (Id link : c.path(a, b)) out.push_back(c.links()[link].name);
  return out;
}

}  // namespace rehearse::cluster
