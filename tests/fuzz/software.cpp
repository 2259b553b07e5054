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
    simulate_methods(fmt::format(
        "model.name = \"gpt-tiny\"\nmethod.precision = \"bf16\"\nsoftware.name = \"{}\"", path));
  });
}

}  // namespace rehearse::fuzz
