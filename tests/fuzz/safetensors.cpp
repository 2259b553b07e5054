// Fuzz target for safetensors files: opens a file, reads every tensor, and takes the file for what
// has changed of a part of a checkpoint.
#include "runtime/checkpoints/files/safetensors.h"

#include "runtime/checkpoints/files/increment.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void safetensors(std::string_view input) {
  const std::string path = write_input(input, "model.safetensors");
  accepts([&] {
    const runtime::FileSum sum{.bytes = static_cast<std::int64_t>(input.size()),
                               .checksum = runtime::checksum_of(std::as_bytes(std::span(input)))};
    const runtime::SafetensorsFile file(path, sum);
    expect(file.bytes() == input.size(), "a file has as many bytes as it has");
    for (const auto& [name, tensor] : file.tensors()) {
      std::int64_t elements = 1;
      for (const std::int64_t extent : tensor.shape) elements *= extent;
      expect(static_cast<std::int64_t>(tensor.data.size()) == elements * size_of(tensor.dtype),
             name + " has the bytes of its shape");
      expect(runtime::checksum_of(tensor.data) == runtime::checksum_of(tensor.data),
             "bytes can be read");
    }
    const std::vector<float> whole(600, 1.0F);
    const tensors::PartKey key{.age = 1, .tensor = "wte.weight", .begin = 0, .end = 600};
    const runtime::TensorEntry base{
        .dtype = program::DType::f32, .shape = {600}, .data = std::as_bytes(std::span(whole))};
    accepts([&] {
      expect(runtime::with_changes(key, base, file.tensors(), path).size() == 2400,
             "a part keeps its length");
    });
  });
}

}  // namespace rehearse::fuzz
