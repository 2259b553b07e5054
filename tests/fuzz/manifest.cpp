// Fuzz target for manifests of checkpoints. Parses the input as it is. Then parses its content
// without the checksum, gives it the checksum of a real shard, and reads tensors from that
// checkpoint; if it is an incremental one, together with a base of the same parts.
#include <filesystem>
#include <span>

#include "runtime/checkpoints/files/checkpoint_reader.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

/// Writes the shard of rank 0 into folder(), with one tensor, and returns the shard's checksum.
runtime::FileSum shard() {
  static const runtime::FileSum sum = [] {
    const std::vector<float> values(64, 1.0F);
    const tensors::PartKey key{.age = 1, .tensor = "wte.weight", .begin = 0, .end = 64};
    const runtime::TensorEntry entry{
        .dtype = program::DType::f32, .shape = {64}, .data = std::as_bytes(std::span(values))};
    return runtime::write_safetensors(folder() + "/" + runtime::shard_name(0),
                                      {{key.text(), entry}});
  }();
  return sum;
}

/// Puts a whole checkpoint with the same parts where the manifest's base must be.
void write_base(runtime::Manifest& increment) {
  runtime::Manifest whole = increment;
  whole.base.reset();
  whole.step = increment.base->step = 0;
  const std::string text = to_text(whole), below = runtime::checkpoint_path("", 0) + "/";
  std::filesystem::create_directories(folder() + "/" + below);
  write_input(text, below + runtime::manifest_name);
  std::filesystem::copy_file(folder() + "/" + runtime::shard_name(0),
                             folder() + "/" + below + runtime::shard_name(0),
                             std::filesystem::copy_options::overwrite_existing);
  increment.base->checksum = runtime::checksum_in(text);
}

void read_tensors(const std::string& checkpoint) {
  runtime::CheckpointReader reader(checkpoint);
  for (Id rank = 0; rank < 4; ++rank) reader.own_step(rank);
  for (const tensors::StorageKind kind :
       {tensors::StorageKind::param, tensors::StorageKind::moment1, tensors::StorageKind::residual,
        tensors::StorageKind::scale})
    for (const char* tensor : {"wte.weight", "scale"}) {
      accepts([&] { reader.dtype_of(kind, tensor); });
      const int copies = std::min(reader.copies(kind, tensor), 4);
      for (int copy = 0; copy < copies; ++copy)
        accepts([&] { reader.whole(kind, tensor, 1, copy, nullptr, program::DType::f32); });
    }
}

}  // namespace

void manifest(std::string_view input) {
  accepts([&] { runtime::parse_manifest(std::string(input), "manifest.json"); });
  accepts([&] {
    runtime::Manifest read = runtime::parse_manifest_content(input, "manifest.json");
    for (runtime::ShardRecord& record : read.shards) record.sum = shard();
    if (read.base) write_base(read);
    const std::string text = to_text(read);
    expect(to_text(runtime::parse_manifest(text, "again")) == text,
           "a manifest is read as it was written");
    const std::string checkpoint = runtime::checkpoint_path("", 1);
    std::filesystem::create_directories(folder() + "/" + checkpoint);
    write_input(text, checkpoint + "/" + runtime::manifest_name);
    std::filesystem::copy_file(folder() + "/" + runtime::shard_name(0),
                               folder() + "/" + checkpoint + "/" + runtime::shard_name(0),
                               std::filesystem::copy_options::overwrite_existing);
    read_tensors(folder() + "/" + checkpoint);
  });
}

}  // namespace rehearse::fuzz
