// Maps llm.c token shards into memory and finds their windows (format: shards.h).
#include "runtime/data/shards.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/files/files.h"

namespace rehearse::runtime {
namespace {
constexpr std::int32_t magic = 20240520;
constexpr std::int32_t known_version = 1;
constexpr std::size_t header_bytes = 256 * sizeof(std::int32_t);
}  // namespace

struct Shards::Mapping {
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : address(std::exchange(other.address, nullptr)),
        bytes(other.bytes),
        tokens(other.tokens),
        first_window(other.first_window) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (address != nullptr) munmap(address, bytes);
  }

  void* address = nullptr;
  std::size_t bytes = 0;
  std::span<const std::uint16_t> tokens = {};
  std::int64_t first_window = 0;
};

Shards::Shards(Shards&&) noexcept = default;
Shards& Shards::operator=(Shards&&) noexcept = default;
Shards::~Shards() = default;

Shards::Shards(const std::vector<std::string>& files, int seq_len) : seq_len_(seq_len) {
  mappings_.reserve(files.size());
  for (const std::string& file : files) {
    will_read(file);
    const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) throw InputError(fmt::format("{}: {}", file, std::strerror(errno)));
    struct stat status = {};
    if (fstat(descriptor, &status) != 0) {
      const int error = errno;
      close(descriptor);
      throw InputError(fmt::format("{}: {}", file, std::strerror(error)));
    }
    const auto bytes = static_cast<std::size_t>(status.st_size);
    if (bytes < header_bytes) {
      close(descriptor);
      throw InputError(
          fmt::format("{}: {} bytes are too few for the {} of a token shard's header: truncated, "
                      "or no llm.c token shard",
                      file, bytes, header_bytes));
    }
    Mapping mapping;
    void* const address = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    const int error = errno;
    close(descriptor);
    if (address == MAP_FAILED)
      throw BackendError(fmt::format("{}: cannot map it: {}", file, std::strerror(error)));
    mapping.address = address;
    mapping.bytes = bytes;

    std::array<std::int32_t, 3> header = {};
    std::memcpy(header.data(), address, sizeof header);
    if (header[0] != magic)
      throw InputError(fmt::format("{}: not an llm.c token shard: its magic number is {}, not {}",
                                   file, header[0], magic));
    if (header[1] != known_version)
      throw InputError(fmt::format("{}: token shard of version {}; only version {} is known", file,
                                   header[1], known_version));
    const std::size_t there = (bytes - header_bytes) / sizeof(std::uint16_t);
    if (header[2] < 0 || bytes != header_bytes + sizeof(std::uint16_t) * header[2])
      throw InputError(fmt::format(
          "{}: {}: the header says {} tokens, the file has {}", file,
          there < static_cast<std::size_t>(header[2]) ? "truncated" : "damaged", header[2], there));
    mapping.tokens = {
        reinterpret_cast<const std::uint16_t*>(static_cast<const char*>(address) + header_bytes),
        there};
    mapping.first_window = windows_;
    tokens_ += header[2];
    if (header[2] > 0) windows_ += (header[2] - 1) / seq_len;
    mappings_.push_back(std::move(mapping));
  }
  if (windows_ == 0)
    throw InputError(fmt::format(
        "{}: {} tokens, fewer than the {} of one sample (seq_len {} and the label of the last)",
        files.empty() ? "data" : files.front(), tokens_, seq_len + 1, seq_len));
}

std::int64_t Shards::first_window(std::size_t file) const {
  return file < mappings_.size() ? mappings_[file].first_window : windows_;
}

std::span<const std::uint16_t> Shards::window(std::int64_t index) const {
  std::size_t low = 0, high = mappings_.size();
  while (high - low > 1) {
    const std::size_t middle = (low + high) / 2;
    (mappings_[middle].first_window <= index ? low : high) = middle;
  }
  const Mapping& mapping = mappings_[low];
  return mapping.tokens.subspan((index - mapping.first_window) * seq_len_, seq_len_ + 1);
}

}  // namespace rehearse::runtime
