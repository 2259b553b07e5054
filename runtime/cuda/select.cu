// Exact top-k with error feedback, in three passes over gradient and residual. A number's magnitude
// is its bits without the sign, which order as the numbers do. Three digits of it, from the top,
// lead to the k-th largest (radix select):
//
//   bit  30 ...... 20 | 19 ....... 9 | 8 ........ 0
//        first digit    second digit   third digit
//
//   1. CountDigits   how often each first digit occurs; PickDigit: that of the k-th largest
//   2. Collect       how many entries of each tile are larger; lists those that share the digit
//      CountDigits, PickDigit twice, over the list: the threshold, and how many of its equals
//      are among the k largest; CountTiles: how many entries of each tile
//      SumBefore     how many come before each tile
//   3. WritePacket   the packet and the new residual
//
// If more entries share the digit than the list has room for (zeros, mostly), all entries are read
// in place of the list. The device sees that; the host, which queued the kernels, does not.
#include "engine/program/packets.h"
#include "runtime/cuda/each.h"
#include "runtime/cuda/numbers.h"
#include "runtime/cuda/sparse.h"
#include "runtime/cuda/tiles.h"

namespace rehearse::runtime {
namespace {

constexpr int bins = 1 << 11, digits = 3;
constexpr std::int64_t most_blocks = 1024;  // of those that share out entries among themselves

struct Digit {
  int shift, width;
};
REHEARSE_BOTH Digit digit_of(int level) {
  return level == 0 ? Digit{20, 11} : level == 1 ? Digit{9, 11} : Digit{0, 9};
}

/// What is known of the threshold: the bits of the digits found so far, and how many of the k
/// largest begin with them.
struct Search {
  std::uint32_t bits, listed;  // listed: entries that share the first digit
  std::int64_t left;
};

struct Selecting {
  program::Kernel kernel;
  NormAndScale gradients;
  const void* gradient;
  program::DType type;
  float* residual;
  bool cleared;  // what the residual holds counts as 0
  std::byte* packet;
  Search* search;
  std::uint32_t* histograms;      // `bins` for each digit
  std::uint32_t *larger, *equal;  // by tile, and one more; after SumBefore: in the tiles before
  std::uint32_t *places, *magnitudes;
  std::int64_t most_listed;

  REHEARSE_BOTH float factor() const { return 1 / gradients.scale(); }
  REHEARSE_BOTH float old_residual(std::int64_t i) const { return cleared ? 0.0F : residual[i]; }
  REHEARSE_BOTH float scaled(std::int64_t i, float factor) const {
    const float g = load(gradient, type, i);
    return factor == 1 ? g : g * factor;
  }
  /// What an entry is chosen by, and sent as.
  REHEARSE_BOTH float value(std::int64_t i, float factor) const {
    const float g = scaled(i, factor);
    return uses_residual(kernel) ? g + old_residual(i) : g;
  }
  REHEARSE_BOTH static std::uint32_t magnitude_of(float value) {
    return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
  }
  REHEARSE_BOTH std::uint32_t magnitude(std::int64_t i, float factor) const {
    return magnitude_of(value(i, factor));
  }
};

/// The entries that a kernel after Collect looks at: the listed ones or all.
struct Candidates {
  const Selecting& x;
  float factor;
  bool all;
  REHEARSE_BOTH Candidates(const Selecting& of, bool every)
      : x(of), factor(of.factor()), all(every || of.search->listed > of.most_listed) {}
  REHEARSE_BOTH std::int64_t count() const { return all ? x.kernel.of : x.search->listed; }
  REHEARSE_BOTH std::uint32_t magnitude(std::int64_t i) const {
    return all ? x.magnitude(i, factor) : x.magnitudes[i];
  }
  REHEARSE_BOTH std::int64_t place(std::int64_t i) const { return all ? i : x.places[i]; }
};

struct CountDigits {
  static constexpr int threads = block_threads, phases = 3;
  struct Shared {
    std::uint32_t bins[runtime::bins];
  };
  Selecting x;
  int level;
  REHEARSE_BOTH void operator()(int phase, const BlockThread& at, Shared& shared) const {
    if (phase == 1) {
      count(at, shared);
      return;
    }
    std::uint32_t* const sums = x.histograms + level * bins;
    for (int i = at.thread; i < bins; i += threads)
      if (phase == 0)
        shared.bins[i] = 0;
      else if (shared.bins[i] != 0)
        add_to(&sums[i], shared.bins[i]);
  }
  REHEARSE_BOTH void count(const BlockThread& at, Shared& shared) const {
    const Digit digit = digit_of(level);
    const Candidates candidates(x, level == 0);
    const std::uint32_t known = x.search->bits >> digit.shift >> digit.width;
    const std::int64_t end = candidates.count();
    for (std::int64_t i = at.block * threads + at.thread; i < end; i += at.blocks * threads) {
      const std::uint32_t digits = candidates.magnitude(i) >> digit.shift;
      if (digits >> digit.width == known) add_to(&shared.bins[digits & bits_below(digit.width)], 1);
    }
  }
};

/// One block.
struct PickDigit {
  static constexpr int threads = block_threads, phases = 2, share = bins / threads;
  struct Shared {
    std::uint32_t sums[threads];  // of `share` bins each, the largest digits first
  };
  Selecting x;
  int level;
  REHEARSE_BOTH void operator()(int phase, const BlockThread& at, Shared& shared) const {
    const std::uint32_t* const sums = x.histograms + level * bins;
    if (phase == 0) {
      std::uint32_t sum = 0;
      for (int i = 1; i <= share; ++i) sum += sums[bins - at.thread * share - i];
      shared.sums[at.thread] = sum;
    } else if (at.thread == 0) {
      std::int64_t left = level == 0 ? x.kernel.keep : x.search->left;
      int some = 0;
      while (shared.sums[some] < left) left -= shared.sums[some++];
      int digit = bins - some * share - 1;
      while (sums[digit] < left) left -= sums[digit--];
      x.search->bits |= static_cast<std::uint32_t>(digit) << digit_of(level).shift;
      x.search->left = left;
    }
  }
};

/// A block for each tile.
struct Collect {
  static constexpr int threads = block_threads, phases = 4;
  struct Shared {
    std::uint32_t larger, found, first;
    std::uint16_t offsets[tile_entries];  // in the tile, of those found
  };
  Selecting x;
  REHEARSE_BOTH void operator()(int phase, const BlockThread& at, Shared& shared) const {
    const std::int64_t begin = at.block * tile_entries, left = x.kernel.of - begin;
    const std::int64_t here = left < tile_entries ? left : tile_entries;
    const float factor = x.factor();
    switch (phase) {
      case 0:
        if (at.thread == 0) shared.larger = shared.found = 0;
        return;
      case 1: {
        const int shift = digit_of(0).shift;
        const std::uint32_t digit = x.search->bits >> shift;
        std::uint32_t larger = 0;
        for (std::int64_t i = at.thread; i < here; i += threads) {
          const std::uint32_t of = x.magnitude(begin + i, factor) >> shift;
          larger += of > digit ? 1 : 0;
          if (of == digit) shared.offsets[add_to(&shared.found, 1)] = static_cast<std::uint16_t>(i);
        }
        if (larger > 0) add_to(&shared.larger, larger);
        return;
      }
      case 2:
        if (at.thread != 0) return;
        x.larger[at.block] = shared.larger;
        shared.first = shared.found == 0 ? 0 : add_to(&x.search->listed, shared.found);
        return;
      default:
        for (std::int64_t i = at.thread; i < shared.found; i += threads) {
          const std::int64_t place = begin + shared.offsets[i], to = shared.first + i;
          if (to >= x.most_listed) return;
          x.places[to] = static_cast<std::uint32_t>(place);
          x.magnitudes[to] = x.magnitude(place, factor);
        }
    }
  }
};

/// Adds the entries that share the threshold's first digit to their tiles.
struct CountTiles {
  static constexpr int threads = block_threads, phases = 1;
  struct Shared {};
  Selecting x;
  REHEARSE_BOTH void operator()(int, const BlockThread& at, Shared&) const {
    const Candidates candidates(x, false);
    const std::uint32_t threshold = x.search->bits;
    const std::int64_t end = candidates.count();
    for (std::int64_t i = at.block * threads + at.thread; i < end; i += at.blocks * threads) {
      const std::uint32_t magnitude = candidates.magnitude(i);
      if (magnitude < threshold || (magnitude ^ threshold) >> digit_of(0).shift != 0) continue;
      add_to(&(magnitude == threshold ? x.equal : x.larger)[candidates.place(i) / tile_entries], 1);
    }
  }
};

/// A block for each tile.
struct WritePacket {
  static constexpr int threads = block_threads, phases = 5;
  struct Shared {
    std::uint32_t taken[tile_words], tied[tile_words], kept[tile_words], before[tile_words];
  };
  Selecting x;

  /// How many entries are sent of the tiles before this one. A step that is skipped sends zeros in
  /// place of the first entries.
  REHEARSE_BOTH std::int64_t sent_before(std::int64_t tile) const {
    const std::int64_t entries = tile * tile_entries, ties = x.equal[tile], left = x.search->left;
    if (!x.gradients.finite()) return entries < x.kernel.keep ? entries : x.kernel.keep;
    return x.larger[tile] + (ties < left ? ties : left);
  }

  REHEARSE_BOTH void operator()(int phase, const BlockThread& at, Shared& shared) const {
    const int w = at.thread;
    switch (phase) {
      case 0:
        if (w < tile_words) shared.taken[w] = shared.tied[w] = 0;
        return;
      case 1:
        find(at, shared);
        return;
      case 2:  // of the entries equal to the threshold, the first ones are taken
        if (w < tile_words) {
          const std::int64_t left =
              x.search->left - x.equal[at.block] - bits_before(shared.tied, w);
          shared.kept[w] = lowest(shared.tied[w], left);
        }
        return;
      case 3:
        if (w < tile_words) {
          std::uint32_t before = bits_before(shared.taken, w) + bits_before(shared.kept, w);
          before += static_cast<std::uint32_t>(sent_before(at.block));
          shared.before[w] = before;
        }
        return;
      default:
        write(at, shared);
    }
  }

 private:
  /// The lowest `count` bits of those set.
  REHEARSE_BOTH static std::uint32_t lowest(std::uint32_t word, std::int64_t count) {
    std::uint32_t out = 0;
    for (; word != 0 && count > 0; --count) {
      const std::uint32_t low = word & (~word + 1);
      out |= low;
      word ^= low;
    }
    return out;
  }

  REHEARSE_BOTH std::int64_t end_of(std::int64_t tile) const {
    const std::int64_t end = (tile + 1) * tile_entries;
    return end < x.kernel.of ? end : x.kernel.of;
  }

  REHEARSE_BOTH void find(const BlockThread& at, Shared& shared) const {
    const bool finite = x.gradients.finite();
    const float factor = x.factor();
    const std::int64_t begin = at.block * tile_entries, end = end_of(at.block);
    for (std::int64_t i = begin + at.thread; i < end; i += threads) {
      const auto offset = static_cast<int>(i - begin);
      const std::uint32_t magnitude = finite ? x.magnitude(i, factor) : 0;
      if (finite ? magnitude > x.search->bits : i < x.kernel.keep)
        set_bit(&shared.taken[offset / word_bits], offset % word_bits);
      else if (finite && magnitude == x.search->bits)
        set_bit(&shared.tied[offset / word_bits], offset % word_bits);
    }
  }

  REHEARSE_BOTH void write(const BlockThread& at, const Shared& shared) const {
    const bool finite = x.gradients.finite();
    const float factor = x.factor();
    const std::int64_t begin = at.block * tile_entries, end = end_of(at.block);
    for (std::int64_t i = begin + at.thread; i < end; i += threads) {
      const auto offset = static_cast<int>(i - begin);
      const int w = offset / word_bits, bit = offset % word_bits;
      const std::uint32_t word = shared.taken[w] | shared.kept[w];
      const bool taken = (word >> bit & 1U) != 0;
      float sent = 0;
      if (finite) {
        const float g = x.scaled(i, factor), old = x.old_residual(i);
        const float beta = residual_beta(x.kernel);
        sent = uses_residual(x.kernel) ? g + old : g;
        const float stays = beta == 1 ? sent : g + beta * old;
        x.residual[i] = taken ? stays - sent : stays;
      }
      if (taken) write_entry(i, shared.before[w] + bits_in(word & bits_below(bit)), sent);
    }
    std::byte* const places = x.packet + 4 * x.kernel.keep;
    if (x.kernel.coding == program::Coding::bitmap && at.thread < tile_words) {
      const std::uint32_t word = shared.taken[at.thread] | shared.kept[at.thread];
      const std::int64_t first = (begin + std::int64_t{at.thread} * word_bits) / 8;
      for (int i = 0; i < 4 && first + i < (x.kernel.of + 7) / 8; ++i)
        places[first + i] = static_cast<std::byte>(word >> 8 * i & 0xffU);
    }
    if (x.kernel.coding == program::Coding::delta16 && at.thread == 0 &&
        begin % program::delta_block == 0) {
      const std::int64_t next = at.block + program::delta_block / tile_entries;
      const std::int64_t sent = sent_before(next < at.blocks ? next : at.blocks);
      store_bytes(places + 4 * (begin / program::delta_block),
                  static_cast<std::uint32_t>(sent - sent_before(at.block)));
    }
  }

  /// The entry `place`, as number `at` of the packet.
  REHEARSE_BOTH void write_entry(std::int64_t place, std::int64_t at, float value) const {
    store_bytes(x.packet + 4 * at, value);
    std::byte* const places = x.packet + 4 * x.kernel.keep;
    if (x.kernel.coding == program::Coding::index32)
      store_bytes(places + 4 * at, static_cast<std::uint32_t>(place));
    if (x.kernel.coding == program::Coding::delta16)
      store_bytes(places + 4 * ((x.kernel.of - 1) / program::delta_block + 1) + 2 * at,
                  static_cast<std::uint16_t>(place % program::delta_block));
  }
};

/// Of the working memory, without the list.
std::int64_t counted_bytes(const program::Kernel& kernel) {
  const std::int64_t counts = digits * bins + 2 * (tiles_of(kernel.of) + 1);
  return static_cast<std::int64_t>(sizeof(Search)) + 4 * counts;
}

}  // namespace

std::int64_t select_bytes(const program::Kernel& kernel) {
  return counted_bytes(kernel) + 8 * select_candidates(kernel);
}

cudaError_t queue_select(const program::Kernel& kernel, const SelectStep& step,
                         const void* gradient, program::DType type, float* residual,
                         std::byte* packet, std::byte* working, cudaStream_t stream) {
  const std::int64_t tiles = tiles_of(kernel.of), sums = tiles + 1;
  const std::int64_t listed = select_candidates(kernel);
  auto* const search = reinterpret_cast<Search*>(working);
  auto* const counts = reinterpret_cast<std::uint32_t*>(working + sizeof(Search));
  std::uint32_t* const larger = counts + digits * bins;
  std::uint32_t* const list = larger + 2 * sums;
  const Selecting x{kernel,        step.gradients, gradient,
                    type,          residual,       clears_residual(kernel, step.step),
                    packet,        search,         counts,
                    larger,        larger + sums,  list,
                    list + listed, listed};
  cudaError_t error =
      cudaMemsetAsync(working, 0, static_cast<std::size_t>(counted_bytes(kernel)), stream);
  const auto then = [&](std::int64_t blocks, const auto& body) {
    if (error == cudaSuccess) error = each_block(blocks, stream, body);
  };
  if (kernel.keep > 0) {
    const std::int64_t some = tiles < most_blocks ? tiles : most_blocks;
    for (int level = 0; level < digits; ++level) {
      then(some, CountDigits{x, level});
      then(1, PickDigit{x, level});
      if (level == 0) then(tiles, Collect{x});
    }
    then(some, CountTiles{x});
    then(1, SumBefore{x.larger, sums});
    then(1, SumBefore{x.equal, sums});
  } else if (error == cudaSuccess) {  // a threshold above all magnitudes
    error = cudaMemsetAsync(&search->bits, 0xff, sizeof search->bits, stream);
  }
  then(tiles, WritePacket{x});
  return error;
}

}  // namespace rehearse::runtime
