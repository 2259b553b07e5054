#include "engine/cluster/platform/platform_torus.h"

#include <fmt/format.h>

#include <charconv>

#include "engine/base/errors.h"
#include "engine/base/numbers/limits.h"

namespace rehearse::cluster {
namespace {

constexpr std::int64_t most_devices = 1 << 16, most_size = 1 << 12;
constexpr std::size_t most_dimensions = 6;

/// Why these are no sizes; empty: they are.
std::string wrong(const std::vector<std::int64_t>& sizes) {
  if (sizes.empty() || sizes.size() > most_dimensions)
    return fmt::format("a torus has 1 to {} dimensions", most_dimensions);
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (size < 1 || size > most_size) return fmt::format("each size is 1 to {}", most_size);
    product *= size;
    if (product > most_devices) return fmt::format("it has more than {} devices", most_devices);
  }
  return product < 2 ? "one device is no torus" : "";
}

}  // namespace

int TorusShape::devices() const {
  int product = 1;
  for (const int size : sizes) product *= size;
  return product;
}

std::vector<int> torus_sizes(const std::string& text, const std::string& whole) {
  const auto refused = [&](const std::string& why) {
    return InputError(
        fmt::format("cluster \"{}\": \"{}\": {}; give the torus's sizes, as in \"tpu-v4:4x4x8\"",
                    whole, text, why));
  };
  std::vector<std::int64_t> sizes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('x', begin), text.size());
    std::int64_t size = 0;
    const auto [last, error] = std::from_chars(text.data() + begin, text.data() + end, size);
    if (error != std::errc{} || last != text.data() + end)
      throw refused(fmt::format("\"{}\" is not a number", text.substr(begin, end - begin)));
    sizes.push_back(size);
    begin = end + 1;
  }
  if (const std::string why = wrong(sizes); !why.empty()) throw refused(why);
  return {sizes.begin(), sizes.end()};
}

std::optional<TorusShape> read_torus(const Config& file, const std::vector<int>& sizes) {
  const Config c = file.section("torus");
  if (!file.has("torus")) return std::nullopt;
  const std::vector<std::int64_t> stated = c.integers("sizes", between(1, most_size));
  TorusShape out{.bandwidth = c.bandwidth("bandwidth", std::nullopt, limits::bandwidth),
                 .latency = c.seconds("latency", std::nullopt, limits::latency)};
  if (const std::string why = wrong(stated); !why.empty()) throw c.error("sizes", why);
  out.sizes.assign(stated.begin(), stated.end());
  if (!sizes.empty()) out.sizes = sizes;
  if (out.sizes.size() != stated.size())
    throw InputError(fmt::format("cluster \"{}\": {} sizes; this torus has {} dimensions",
                                 file.file(), out.sizes.size(), stated.size()));
  return out;
}

}  // namespace rehearse::cluster
