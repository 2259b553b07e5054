#include "engine/cluster/platform/platform_sections.h"

#include <fmt/format.h>

#include <algorithm>

namespace rehearse::cluster {
namespace {

constexpr const char* both_kinds =
    "a kind of device is a [[device]], and those of a node are listed in [[nodes]]: devices = "
    "[\"H100\"]";

}  // namespace

void check_sections(const Config& file) {
  const std::vector<std::string> known{"summary", "source", "scale",  "shared_cores", "torus",
                                       "nodes",   "device", "fabric", "shared_disk"};
  for (const std::string& key : file.names()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    if (key == "devices") throw file.error(key, fmt::format("unknown; {}", both_kinds));
    if (const std::string near = nearest(key, known); !near.empty())
      throw file.error(key, fmt::format("unknown; did you mean \"{}\"?", near));
  }
  try {
    file.sections("device");
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}; {}", error.what(), both_kinds));
  }
}

void check_devices(const Config& node) {
  if (node.has("devices")) return;
  if (const std::string near = nearest("devices", node.names()); !near.empty())
    throw node.error(near, "unknown; did you mean \"devices\"?");
}

}  // namespace rehearse::cluster
