// Manifests of checkpoints, with a shard beside them whose checksum they may or may not name.
#include <cstring>

#include "runtime/checkpoint_reader.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

/// A checkpoint folder with one shard of one tensor.
const std::string& checkpoint() {
  static const std::string path = [] {
    const std::vector<float> values(64, 1.0F);
    const PartKey key{.age = 1, .tensor = "wte.weight", .begin = 0, .end = 64};
    const TensorEntry entry{
        .dtype = DType::f32, .shape = {64}, .data = std::as_bytes(std::span(values))};
    write_safetensors(folder() + "/rank-00000.safetensors", {{key.text(), entry}});
    return folder();
  }();
  return path;
}

}  // namespace

void manifest(std::string_view input) {
  checkpoint();
  write_input(input, "manifest.json");
  accepts([&] {
    CheckpointReader reader(checkpoint());
    expect(reader.step() >= 0, "a step is a natural number");
    for (Id rank = 0; rank < 4; ++rank) reader.own_step(rank);
    for (const Kind kind : {Kind::param, Kind::moment1, Kind::residual, Kind::scale})
      for (const char* tensor : {"wte.weight", "scale"}) {
        accepts([&] { reader.dtype_of(kind, tensor); });
        const int copies = reader.copies(kind, tensor);
        for (int copy = 0; copy < std::min(copies, 4); ++copy)
          accepts([&] { reader.whole(kind, tensor, 1, copy, nullptr, DType::f32); });
      }
  });
}

}  // namespace rehearse::fuzz
