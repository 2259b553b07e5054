// Fuzz target for model files, in TOML or a config.json: loads a model and simulates it on four
// GPUs with three methods.
#include "engine/model/model.h"

#include <fmt/format.h>

#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void model(std::string_view input) {
  const std::string path = write_input(input, input.starts_with('{') ? "model.json" : "model.toml");
  accepts([&] {
    const model::ModelSpec spec = model::load_model(path, 0);
    expect(parameters_of(spec) > 0, "a model has parameters");
    if (!is_small(spec)) return;
    simulate_methods(fmt::format("model.name = \"{}\"", path));
  });
}

}  // namespace rehearse::fuzz
