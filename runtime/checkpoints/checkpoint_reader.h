// Reads a checkpoint as whole logical tensors, whatever mesh saved it. A file is opened, and its
// checksum compared, when it is first needed.
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
  /// Reads the manifest. Throws InputError as read_manifest does.
  explicit CheckpointReader(const std::string& folder);

  const Manifest& manifest() const { return manifest_; }
  /// The step with which a free-running rank goes on: its own next step if the checkpoint has one,
  /// else the run's.
  std::int64_t own_step(Id rank) const;

  /// A whole tensor of this kind, age and copy, flat; empty when there is none. `spec` null: not a
  /// tensor of the model (a loss scale). Throws InputError that names the file: truncated, damaged,
  /// another precision or shape, elements missing.
  std::vector<std::byte> whole(tensors::StorageKind kind, const std::string& tensor, int age,
                               int copy, const model::TensorSpec* spec, program::DType dtype);
  /// Number of copies (residuals of data-parallel ranks); 0: none saved.
  int copies(tensors::StorageKind kind, const std::string& tensor) const;
  /// The dtype that a tensor was saved in; f32 when there is none.
  program::DType dtype_of(tensors::StorageKind kind, const std::string& tensor);
  /// Checks the checksum of a shard, given by its index in the manifest. Throws InputError that
  /// names the file.
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
  std::vector<std::unique_ptr<SafetensorsFile>> files_ = {};  // by shard; null: not opened yet
};

}  // namespace rehearse::runtime
