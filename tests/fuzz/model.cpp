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
    for (const char* method : {"ddp", "zero3", "megatron"})
      accepts([&] {
        simulate(fmt::format(R"(
model.name = "{}"
cluster = {{ name = "dgx-h100:1", world_size = 4 }}
method.name = "{}"
train.global_batch = 8
)",
                             path, method));
      });
  });
}

}  // namespace rehearse::fuzz
