#include "runtime/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/errors.h"
#include "engine/json_text.h"

namespace rehearse {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<DType, const char*>, 5> dtype_names = {{{DType::f32, "F32"},
                                                                       {DType::bf16, "BF16"},
                                                                       {DType::f16, "F16"},
                                                                       {DType::i32, "I32"},
                                                                       {DType::u8, "U8"}}};

const char* name_of(DType type) {
  for (const auto& [known, name] : dtype_names)
    if (known == type) return name;
  return "U8";
}

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw BackendError(fmt::format("{}: cannot {}: {}", path, what, std::strerror(error)));
}

class OutputFile {
 public:
  explicit OutputFile(const std::string& path)
      : path_(path),
        descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail(path_, "create it", errno);
  }
  ~OutputFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail(path_, "write", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
  void finish() {
    if (fsync(descriptor_) != 0) fail(path_, "sync", errno);
    if (close(std::exchange(descriptor_, -1)) != 0) fail(path_, "close", errno);
  }

 private:
  std::string path_;
  int descriptor_;
};

/// The checksum of a file that is written piece by piece.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes) {
    length_ += bytes.size();
    while (!bytes.empty() && (filled_ > 0 || bytes.size() < buffer_.size())) {
      buffer_[filled_++] = bytes.front();
      bytes = bytes.subspan(1);
      if (filled_ == buffer_.size()) {
        mix(buffer_.data());
        filled_ = 0;
      }
    }
    while (bytes.size() >= buffer_.size()) {
      mix(bytes.data());
      bytes = bytes.subspan(buffer_.size());
    }
    for (const std::byte byte : bytes) buffer_[filled_++] = byte;
  }
  std::uint64_t value() {
    std::fill(buffer_.begin() + filled_, buffer_.end(), std::byte{0});
    if (filled_ > 0) mix(buffer_.data());
    std::uint64_t sum = offset ^ length_;
    for (const std::uint64_t lane : lanes_) sum = (sum ^ lane) * prime;
    return sum ^ (sum >> 32);
  }

 private:
  static constexpr std::uint64_t offset = 0xcbf29ce484222325ULL, prime = 0x100000001b3ULL;

  void mix(const std::byte* block) {
    std::array<std::uint64_t, 4> words = {};
    std::memcpy(words.data(), block, sizeof words);
    for (int i = 0; i < 4; ++i) {
      lanes_[i] = (lanes_[i] ^ words[i]) * prime;
      lanes_[i] ^= lanes_[i] >> 29;  // FNV alone carries nothing downwards
    }
  }

  std::array<std::uint64_t, 4> lanes_ = {offset, offset + 1, offset + 2, offset + 3};
  std::array<std::byte, 32> buffer_ = {};
  std::size_t filled_ = 0, length_ = 0;
};

}  // namespace

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  Checksum checksum;
  checksum.add(bytes);
  return checksum.value();
}

std::uint64_t write_safetensors(const std::string& path, const TensorTable& tensors,
                                const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  std::size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", name_of(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();

  OutputFile file(path);
  Checksum checksum;
  const auto put = [&](std::span<const std::byte> bytes) {
    checksum.add(bytes);
    file.write(bytes);
  };
  put(std::as_bytes(std::span(&length, 1)));
  put(std::as_bytes(std::span(text)));
  for (const auto& [name, tensor] : tensors) put(tensor.data);
  file.finish();
  return checksum.value();
}

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  const int descriptor = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw InputError(fmt::format("{}: {}", path_, std::strerror(errno)));
  struct stat status = {};
  const bool known = fstat(descriptor, &status) == 0;
  bytes_ = known ? static_cast<std::size_t>(status.st_size) : 0;
  if (bytes_ >= 8) address_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (bytes_ < 8 || address_ == MAP_FAILED) {
    address_ = nullptr;
    throw InputError(fmt::format("{}: truncated: {} bytes", path_, bytes_));
  }
  try {
    const auto* const bytes = static_cast<const std::byte*>(address_);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes, sizeof length);
    if (length > bytes_ - 8)
      throw InputError(
          fmt::format("{}: truncated, or no safetensors file: a header of {} bytes in a file of {}",
                      path_, length, bytes_));
    const auto* const text = reinterpret_cast<const char*>(bytes + 8);
    const json header = json::parse(text, text + length);
    const std::size_t data = 8 + length;
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") continue;
      TensorEntry entry{.shape = value.at("shape").get<std::vector<std::int64_t>>()};
      const auto dtype = value.at("dtype").get<std::string>();
      bool found = false;
      for (const auto& [type, spelling] : dtype_names)
        if (dtype == spelling) entry.dtype = type, found = true;
      if (!found)
        throw InputError(
            fmt::format("{}: tensor {} has dtype {}, which is not supported", path_, name, dtype));
      const auto offsets = value.at("data_offsets").get<std::array<std::size_t, 2>>();
      std::size_t expected = size_of(entry.dtype);
      for (const std::int64_t extent : entry.shape) expected *= static_cast<std::size_t>(extent);
      if (offsets[0] > offsets[1] || offsets[1] > bytes_ - data)
        throw InputError(fmt::format("{}: truncated: tensor {} ends at byte {} of {}", path_, name,
                                     data + offsets[1], bytes_));
      if (offsets[1] - offsets[0] != expected)
        throw InputError(fmt::format("{}: tensor {} has {} bytes, its shape needs {}", path_, name,
                                     offsets[1] - offsets[0], expected));
      entry.data = {bytes + data + offsets[0], expected};
      tensors_.emplace(name, std::move(entry));
    }
  } catch (const json::exception& error) {
    munmap(address_, bytes_);
    throw InputError(
        fmt::format("{}: damaged, or no safetensors file: {}", path_, words_of(error)));
  } catch (...) {
    munmap(address_, bytes_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (address_ != nullptr) munmap(address_, bytes_);
}

std::uint64_t SafetensorsFile::checksum() const {
  return checksum_of({static_cast<const std::byte*>(address_), bytes_});
}

void write_durably(const std::string& path, const std::string& text) {
  const std::string beside = path + ".new";
  OutputFile file(beside);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  std::error_code error;
  std::filesystem::rename(beside, path, error);
  if (error) throw BackendError(fmt::format("{}: cannot rename: {}", beside, error.message()));
}

void sync_folder(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "open the folder", errno);
  const int result = fsync(descriptor);
  const int error = errno;
  close(descriptor);
  if (result != 0) fail(path, "sync the folder", error);
}

}  // namespace rehearse
