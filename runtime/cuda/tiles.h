// Entries in tiles: how kernels of sparse exchanges find, for each entry of a set, how many of the
// set come before it. A tile's entries are bits of words, which the threads of a block set.
#pragma once
#include <cstdint>

#include "runtime/cuda/each.h"

namespace rehearse::runtime {

inline constexpr int block_threads = 256, word_bits = 32, tile_words = 128;
inline constexpr std::int64_t tile_entries = std::int64_t{tile_words} * word_bits;

REHEARSE_BOTH std::int64_t tiles_of(std::int64_t entries) {
  return (entries + tile_entries - 1) / tile_entries;
}

REHEARSE_BOTH std::uint32_t bits_below(int bit) { return (1U << bit) - 1; }
/// How many bits are set in the words before word `w`.
REHEARSE_BOTH std::uint32_t bits_before(const std::uint32_t* words, int w) {
  std::uint32_t bits = 0;
  for (int i = 0; i < w; ++i) bits += static_cast<std::uint32_t>(bits_in(words[i]));
  return bits;
}

/// Replaces each count by the sum of those before it. One block.
struct SumBefore {
  static constexpr int threads = block_threads, phases = 3;
  struct Shared {
    std::uint32_t sums[threads];
  };
  std::uint32_t* counts;
  std::int64_t count;
  REHEARSE_BOTH void operator()(int phase, const BlockThread& at, Shared& shared) const {
    const std::int64_t share = (count + threads - 1) / threads;
    const std::int64_t begin = at.thread * share;
    const std::int64_t end = begin + share < count ? begin + share : count;
    std::uint32_t sum = 0;
    switch (phase) {
      case 0:
        for (std::int64_t i = begin; i < end; ++i) sum += counts[i];
        shared.sums[at.thread] = sum;
        return;
      case 1:
        if (at.thread != 0) return;
        for (std::uint32_t& one : shared.sums) {
          const std::uint32_t next = sum + one;
          one = sum;
          sum = next;
        }
        return;
      default:
        sum = shared.sums[at.thread];
        for (std::int64_t i = begin; i < end; ++i) {
          const std::uint32_t next = sum + counts[i];
          counts[i] = sum;
          sum = next;
        }
    }
  }
};

}  // namespace rehearse::runtime
