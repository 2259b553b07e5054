// Fuzz target for profiles: reads a profile, writes it again, and simulates a small job with its
// costs.
#include "engine/costs/profile.h"

#include <fmt/format.h>

#include "engine/base/fnv.h"
#include "engine/cluster/platform/platform.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void profile(std::string_view input) {
  static const cluster::Cluster measured = cluster::load_cluster("dgx1");
  std::string text(input);
  set_value(text, "\"cluster_hash\": \"", hash_text(measured.hash()));
  const std::string path = write_input(text, "profile.json");
  accepts([&] {
    const std::string written = to_json(costs::load_profile(path));
    expect(to_json(costs::parse_profile(written, "again")) == written,
           "a profile is read as it was written");
  });
  for (const char* cluster : {"dgx1", "this-machine:2"})
    accepts([&] {
      simulate(fmt::format(R"(
model.name = "gpt-tiny"
cluster = {{ name = "{}", profile = "{}", world_size = 2 }}
method.name = "ddp"
)",
                           cluster, path));
    });
}

}  // namespace rehearse::fuzz
