// Reads a checkpoint back as logical tensors, whatever mesh it was saved from. Files are opened and
// their checksums compared when they are first needed.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/tensors/tensor_parts.h"
#include "runtime/checkpoints/manifest.h"
#include "runtime/checkpoints/safetensors.h"

namespace rehearse::runtime {

class CheckpointReader {
 public:
  /// Throws InputError as read_manifest does.
  explicit CheckpointReader(const std::string& folder);

  const Manifest& manifest() const { return manifest_; }
  /// Where a free-running rank goes on: after its own last step, or with the run where this rank
  /// counted no steps of its own.
  std::int64_t own_step(Id rank) const;

  /// A whole tensor of this kind, age and copy; empty when there is none. `spec` null: not a
  /// tensor of the model (a loss scale). Throws InputError that names the file: truncated, damaged,
  /// another precision or shape, elements that no part covers.
  std::vector<std::byte> whole(tensors::StorageKind kind, const std::string& tensor, int age,
                               int copy, const model::TensorSpec* spec, program::DType dtype);
  /// How many copies (residuals of data-parallel ranks) there are.
  int copies(tensors::StorageKind kind, const std::string& tensor) const;
  /// The dtype that a tensor was saved in; f32 when there is none.
  program::DType dtype_of(tensors::StorageKind kind, const std::string& tensor);
  /// Compares the checksum of a shard, by its place in the manifest. Throws InputError that names
  /// it.
  void verify(std::size_t shard) { file_of(shard); }

 private:
  struct Place {
    tensors::PartKey key = {};
    std::size_t shard = 0;
  };
  std::string path_of(std::size_t shard) const;
  const SafetensorsFile& file_of(std::size_t shard);
  TensorEntry read(const Place& place);

  std::string folder_;
  Manifest manifest_;
  std::map<std::pair<tensors::StorageKind, std::string>, std::vector<Place>> places_ = {};
  std::vector<std::unique_ptr<SafetensorsFile>> files_ = {};  // by shard
};

}  // namespace rehearse::runtime
