// Profiles: read, written again, and a small job that costs come from.
#include "engine/profile.h"

#include <fmt/format.h>

#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void profile(std::string_view input) {
  const std::string path = write_input(input, "profile.json");
  accepts([&] {
    const std::string text = to_json(load_profile(path));
    expect(to_json(parse_profile(text, "again")) == text, "a profile is read as it was written");
  });
  for (const char* cluster : {"paper", "this-machine:2"})
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
