// Files in the safetensors format (github.com/huggingface/safetensors: a u64 with the length of a
// JSON header, the header with name -> dtype, shape, offsets, then the data), and the two things
// that make a folder of them survive a crash: durable writes and checksums.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::runtime {

struct TensorEntry {
  program::DType dtype = program::DType::f32;
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> data = {};
};
using TensorTable = std::map<std::string, TensorEntry>;

/// What a file is known by.
struct FileSum {
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;
};

/// Writes the file and returns when it is on disk. Throws BackendError that
/// names the file and what the system said (no space left on device, ...).
FileSum write_safetensors(const std::string& path, const TensorTable& tensors,
                          const std::map<std::string, std::string>& metadata = {});

/// A memory-mapped file. Throws InputError that names the file: missing, truncated, not the one
/// that `sum` says, no safetensors file, offsets that do not fit.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path, std::optional<FileSum> sum = {});
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const TensorTable& tensors() const { return tensors_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::string path_;
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
  TensorTable tensors_ = {};
};

/// XXH3's 64-bit checksum, several GB/s on one core: no disk waits for it. Guards against damage,
/// not against forgery.
std::uint64_t checksum_of(std::span<const std::byte> bytes);

/// Writes a small text file beside its name, syncs it and renames it into place.
void write_durably(const std::string& path, const std::string& text);
/// Makes renames and new names in a folder durable.
void sync_folder(const std::string& path);

}  // namespace rehearse::runtime
