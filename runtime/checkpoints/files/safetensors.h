// Reads and writes files in the safetensors format (github.com/huggingface/safetensors), with
// durable writes and checksums so that a folder of them survives a crash:
//
//   [u64 length of the header] [header: JSON, name -> dtype, shape, data_offsets] [data]
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::runtime {

/// A tensor of a file. `data` points into memory of the caller or of the SafetensorsFile.
struct TensorEntry {
  program::DType dtype = program::DType::f32;
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> data = {};
};
using TensorTable = std::map<std::string, TensorEntry>;

/// Length and checksum of a file.
struct FileSum {
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;
};

/// Files are written, checked, and copied to other nodes in pieces of so many bytes. Each is a sign
/// of life.
inline constexpr std::size_t file_piece = std::size_t{64} << 20;

/// Writes the file and returns when it is on disk. Throws BackendError that names the file and the
/// system's error (no space left on device, ...). Calls `alive`, if there is one, after each piece;
/// no more than 1 GiB waits for the disk at the end.
FileSum write_safetensors(const std::string& path, const TensorTable& tensors,
                          const std::map<std::string, std::string>& metadata = {},
                          const std::function<void()>& alive = {});

/// A memory-mapped safetensors file. Throws InputError that names the file: missing, truncated,
/// another length or checksum than `sum`, not this format, offsets that do not fit. While it
/// compares the checksum it calls `alive`, if there is one, after each piece.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path, std::optional<FileSum> sum = {},
                           const std::function<void()>& alive = {});
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

/// XXH3's 64-bit checksum: several GB/s on one core, faster than disks. It protects against damage,
/// not against forgery.
std::uint64_t checksum_of(std::span<const std::byte> bytes);

/// Writes a small text file under a temporary name, syncs it and renames it into place. Throws
/// BackendError.
void write_durably(const std::string& path, const std::string& text);
/// Makes renames and new files in a folder durable. Throws BackendError.
void sync_folder(const std::string& path);

}  // namespace rehearse::runtime
