// Fuzz target for software files: reads one twice, and simulates small jobs with it.
#include "engine/software/software.h"

#include <fmt/format.h>

#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void software(std::string_view input) {
  const std::string path = write_input(input, "software.toml");
  accepts([&] {
    expect(hash_of(software::load_software(path)) == hash_of(software::load_software(path)),
           "a software file is read the same twice");
    for (const char* method : {"ddp", "zero3", "megatron"})
      accepts([&] {
        simulate(fmt::format(R"(
model.name = "gpt-tiny"
cluster = {{ name = "dgx-h100:1", world_size = 4 }}
software.name = "{}"
method = {{ name = "{}", precision = "bf16" }}
train.global_batch = 8
)",
                             path, method));
      });
  });
}

}  // namespace rehearse::fuzz
