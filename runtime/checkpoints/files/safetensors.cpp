#include "runtime/checkpoints/files/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/base/files/json_reader.h"
#include "engine/base/files/json_text.h"

namespace rehearse::runtime {
namespace {

using nlohmann::json;

constexpr std::size_t unsynced = std::size_t{1} << 30;  // bytes

constexpr std::array<std::pair<program::DType, const char*>, 5> dtype_names = {
    {{program::DType::f32, "F32"},
     {program::DType::bf16, "BF16"},
     {program::DType::f16, "F16"},
     {program::DType::i32, "I32"},
     {program::DType::u8, "U8"}}};

const char* name_of(program::DType type) {
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
  void sync() {
    if (fsync(descriptor_) != 0) fail(path_, "sync", errno);
  }
  void finish() {
    sync();
    if (close(std::exchange(descriptor_, -1)) != 0) fail(path_, "close", errno);
  }

 private:
  std::string path_;
  int descriptor_;
};

/// The checksum of a file that is written piece by piece.
class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void add(std::span<const std::byte> bytes) {
    XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  }
  std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

/// Calls `use` with each piece, in order.
void in_pieces(std::span<const std::byte> bytes,
               const std::function<void(std::span<const std::byte>)>& use) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(file_piece, bytes.size())))
    use(bytes.first(std::min(file_piece, bytes.size())));
}

}  // namespace

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

FileSum write_safetensors(const std::string& path, const TensorTable& tensors,
                          const std::map<std::string, std::string>& metadata,
                          const std::function<void()>& alive) {
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
  std::size_t written = 0, synced = 0;
  const auto put = [&](std::span<const std::byte> bytes) {
    in_pieces(bytes, [&](std::span<const std::byte> piece) {
      written += piece.size();
      checksum.add(piece);
      file.write(piece);
      if (written - synced >= unsynced) {
        file.sync();
        synced = written;
      }
      if (alive) alive();
    });
  };
  put(std::as_bytes(std::span(&length, 1)));
  put(std::as_bytes(std::span(text)));
  for (const auto& [name, tensor] : tensors) put(tensor.data);
  file.finish();
  return {.bytes = static_cast<std::int64_t>(written), .checksum = checksum.value()};
}

namespace {

std::vector<std::int64_t> whole_numbers(JsonReader& tensor, const char* key) {
  const auto& list = tensor.at(key);
  if (!list.is_array()) tensor.fail(fmt::format("\"{}\" must be a list", key));
  std::vector<std::int64_t> out;
  for (const auto& value : list)
    out.push_back(tensor.integer_of<std::int64_t>(value, fmt::format("\"{}\"", key), 0,
                                                  std::numeric_limits<std::int64_t>::max()));
  return out;
}

/// Bytes of a tensor by its shape; nothing when they do not fit into 64 bits.
std::optional<std::size_t> bytes_of(const TensorEntry& tensor) {
  std::size_t bytes = size_of(tensor.dtype);
  for (const std::int64_t extent : tensor.shape)
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes))
      return std::nullopt;
  return bytes;
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path, std::optional<FileSum> sum,
                                 const std::function<void()>& alive)
    : path_(std::move(path)) {
  will_read(path_);
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
    if (sum && bytes_ != static_cast<std::size_t>(sum->bytes))
      throw InputError(
          fmt::format("{}: {}: it has {} bytes, the manifest says {}", path_,
                      bytes_ < static_cast<std::size_t>(sum->bytes) ? "truncated" : "damaged",
                      bytes_, sum->bytes));
    Checksum checksum;
    if (sum)
      in_pieces({bytes, bytes_}, [&](std::span<const std::byte> piece) {
        checksum.add(piece);
        if (alive) alive();
      });
    if (sum && checksum.value() != sum->checksum)
      throw InputError(fmt::format(
          "{}: its checksum is not the one in the manifest: damaged or changed", path_));
    std::uint64_t length = 0;
    std::memcpy(&length, bytes, sizeof length);
    if (length > bytes_ - 8)
      throw InputError(
          fmt::format("{}: truncated, or no safetensors file: a header of {} bytes in a file of {}",
                      path_, length, bytes_));
    const auto* const text = reinterpret_cast<const char*>(bytes + 8);
    const auto header = nlohmann::ordered_json::parse(text, text + length);
    const std::size_t data = 8 + length;
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") continue;
      JsonReader tensor(value, fmt::format("{}: tensor {}", path_, name));
      TensorEntry entry{.shape = whole_numbers(tensor, "shape")};
      const std::string dtype = tensor.text("dtype");
      bool found = false;
      for (const auto& [type, spelling] : dtype_names)
        if (dtype == spelling) entry.dtype = type, found = true;
      if (!found)
        throw InputError(
            fmt::format("{}: tensor {} has dtype {}, which is not supported", path_, name, dtype));
      const std::vector<std::int64_t> offsets = whole_numbers(tensor, "data_offsets");
      if (offsets.size() != 2) tensor.fail("\"data_offsets\" must be two numbers");
      const auto begin = static_cast<std::size_t>(offsets[0]),
                 end = static_cast<std::size_t>(offsets[1]);
      if (begin > end || end > bytes_ - data)
        throw InputError(fmt::format("{}: truncated: tensor {} ends at byte {} of {}", path_, name,
                                     data + end, bytes_));
      if (const auto expected = bytes_of(entry); expected != end - begin)
        throw InputError(fmt::format(
            "{}: tensor {} has {} bytes, its shape needs {}", path_, name, end - begin,
            expected ? std::to_string(*expected) : std::string("more than a file can have")));
      entry.data = {bytes + data + begin, end - begin};
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

}  // namespace rehearse::runtime
