// Fuzz target for platform files: loads the cluster, finds its paths, and simulates a small job on
// it.
#include "engine/cluster/platform/platform.h"

#include <fmt/format.h>

#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void platform(std::string_view input) {
  if (has_large(input, {"count"}, 64)) return;
  const std::string path = write_input(input, "platform.toml");
  for (const char* scale : {"", ":2"})
    accepts([&] {
      const cluster::Cluster cluster = cluster::load_cluster(path + scale);
      const auto devices = static_cast<Id>(cluster.devices().size());
      if (devices > 64) return;
      for (Id d = 1; d < devices; ++d) accepts([&] { cluster.path(0, d); });
      simulate(fmt::format(R"(
model.name = "gpt-tiny"
cluster.name = "{}{}"
method.name = "ddp"
disturb = {{ compute_jitter = 0.1, link_jitter = 0.1 }}
)",
                           path, scale));
    });
}

}  // namespace rehearse::fuzz
