#include "runtime/data/permute.h"

#include <bit>
#include <utility>

namespace rehearse::runtime {

std::uint64_t hash(std::uint64_t a, std::uint64_t b) {
  const auto mix = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  };
  return mix(mix(a + 0x9e3779b97f4a7c15ULL) ^ (b + 0x632be59bd9b4e019ULL));
}

std::int64_t permute(std::int64_t index, std::int64_t count, std::uint64_t key) {
  if (count <= 1) return 0;
  const int half = (std::bit_width(static_cast<std::uint64_t>(count - 1)) + 1) / 2;
  const std::uint64_t low = (std::uint64_t{1} << half) - 1;
  auto place = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = place >> half, right = place & low;
    for (std::uint64_t round = 0; round < 6; ++round)
      left = std::exchange(right, left ^ (hash(key + round, right) & low));
    place = (left << half) | right;
  } while (place >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(place);
}

}  // namespace rehearse::runtime
