// Reads a checkpoint as whole logical tensors, whatever mesh saved it. A file is opened, and its
// checksum compared, when it is first needed. An incremental checkpoint is read together with its
// base; an error about the base names both.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/tensors/tensor_parts.h"
#include "runtime/checkpoints/files/manifest.h"
#include "runtime/checkpoints/files/safetensors.h"

namespace rehearse::runtime {

class CheckpointReader {
 public:
  /// Reads the manifest, and that of its base. Throws InputError as read_manifest does, and when
  /// the base is missing, damaged or another one. Reading calls `alive`, if there is one, with each
  /// piece of a file that it checks and each part of a tensor.
  explicit CheckpointReader(const std::string& folder, std::function<void()> alive = {});

  const Manifest& manifest() const { return manifest_; }
  /// The step with which a free-running rank goes on: its own next step if the checkpoint has one,
  /// else the run's.
  std::int64_t own_step(Id rank) const;

  /// A whole tensor of this kind, age and copy, flat; empty when there is none. `spec` null: not a
  /// tensor of the model (a loss scale). Throws InputError that names the file: truncated, damaged,
  /// another precision or shape, elements missing.
  std::vector<std::byte> whole(tensors::StorageKind kind, const std::string& tensor, int age,
                               int copy, const model::TensorSpec* spec, program::DType dtype);
  /// The mean of all copies of a tensor, in its type; `whole` where there is one.
  std::vector<std::byte> mean(tensors::StorageKind kind, const std::string& tensor, int age,
                              const model::TensorSpec* spec, program::DType dtype);
  /// Whether any rank has saved state of this kind.
  bool has(tensors::StorageKind kind) const;
  /// Number of copies (residuals, and what was each rank's own); 0: none saved.
  int copies(tensors::StorageKind kind, const std::string& tensor) const;
  /// The dtype that a tensor was saved in; f32 when there is none.
  program::DType dtype_of(tensors::StorageKind kind, const std::string& tensor);
  /// Checks the checksum of a shard, given by its index in the manifest, and of its base. Throws
  /// InputError that names the file.
  void verify(std::size_t shard);

 private:
  CheckpointReader(const std::string& folder, Manifest manifest, std::function<void()> alive);
  void open_base();
  /// Runs `read` on the base; an error says whose base it is.
  template <class F>
  auto of_base(F read);
  struct Place {
    tensors::PartKey key = {};
    std::size_t shard = 0;
  };
  std::string path_of(std::size_t shard) const;
  const SafetensorsFile& file_of(std::size_t shard);
  const TensorEntry& entry_of(const Place& place);
  /// The elements of a part. `changed`: memory for those of an incremental checkpoint.
  TensorEntry read(const Place& place, std::vector<std::byte>& changed);

  std::string folder_;
  Manifest manifest_;
  std::function<void()> alive_;
  std::map<std::pair<tensors::StorageKind, std::string>, std::vector<Place>> places_ = {};
  std::vector<std::unique_ptr<SafetensorsFile>> files_ = {};  // by shard; null: not opened yet
  std::unique_ptr<CheckpointReader> base_ = {};  // with the same shards; null: this one is whole
};

}  // namespace rehearse::runtime
