// Adds packets to a gradient, one packet after the other: the entries of one packet are different
// ones, so the sums are the CPU's. Of a bitmap, and of the blocks of delta16, it is first counted
// how many entries come before each tile or block.
#include <limits>

#include "engine/program/packets.h"
#include "runtime/cuda/each.h"
#include "runtime/cuda/numbers.h"
#include "runtime/cuda/sparse.h"
#include "runtime/cuda/tiles.h"

namespace rehearse::runtime {
namespace {

struct Scattering {
  program::Kernel kernel;
  std::int64_t begin, end;  // the entries that `target` holds
  float* target;
  const std::byte* one;    // the packet that is added
  std::uint32_t* damaged;  // not 0: some packet contradicts itself
  std::uint32_t* before;   // by tile or block, and one more; after SumBefore: entries before it
  std::int64_t parts;      // how many tiles or blocks there are

  REHEARSE_BOTH const std::byte* places() const { return one + 4 * kernel.keep; }
  /// Adds number `at` of the packet to entry `place`.
  REHEARSE_BOTH void add(std::int64_t at, std::int64_t place) const {
    if (at >= kernel.keep || place >= kernel.of) {
      *damaged = 1;
    } else if (place >= begin && place < end) {
      target[place - begin] += load_bytes<float>(one + 4 * at);
    }
  }
  REHEARSE_BOTH void check_total() const {
    if (before[parts] != kernel.keep) *damaged = 1;
  }
  /// The bits of 32 entries, of which some may be beyond the last one.
  REHEARSE_BOTH std::uint32_t word(std::int64_t index) const {
    std::uint32_t bits = 0;
    for (std::int64_t i = 0; i < 4 && 4 * index + i < (kernel.of + 7) / 8; ++i)
      bits |= static_cast<std::uint32_t>(places()[4 * index + i]) << 8 * i;
    return bits;
  }
};

struct AddIndexed {
  Scattering x;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    x.add(at, load_bytes<std::uint32_t>(x.places() + 4 * at));
  }
};

/// A block for each tile.
struct CountBits {
  static constexpr int threads = tile_words, phases = 3;
  struct Shared {
    std::uint32_t sum;
  };
  Scattering x;
  REHEARSE_BOTH void operator()(int phase, const BlockThread& at, Shared& shared) const {
    if (phase == 1)
      add_to(&shared.sum,
             static_cast<std::uint32_t>(bits_in(x.word(at.block * tile_words + at.thread))));
    else if (at.thread == 0 && phase == 0)
      shared.sum = 0;
    else if (at.thread == 0)
      x.before[at.block] = shared.sum;
  }
};

/// A block for each tile.
struct AddMarked {
  static constexpr int threads = tile_words, phases = 2;
  struct Shared {
    std::uint32_t words[tile_words];
  };
  Scattering x;
  REHEARSE_BOTH void operator()(int phase, const BlockThread& at, Shared& shared) const {
    const std::int64_t index = at.block * tile_words + at.thread;
    if (phase == 0) {
      shared.words[at.thread] = x.word(index);
      return;
    }
    if (index == 0) x.check_total();
    const std::uint32_t word = shared.words[at.thread];
    std::int64_t number = x.before[at.block] + bits_before(shared.words, at.thread);
    for (int bit = 0; bit < word_bits; ++bit)
      if ((word >> bit & 1U) != 0) x.add(number++, index * word_bits + bit);
  }
};

struct CopyCounts {
  Scattering x;
  REHEARSE_BOTH void operator()(std::int64_t block) const {
    x.before[block] = load_bytes<std::uint32_t>(x.places() + 4 * block);
  }
};

/// A block of threads for each block of entries.
struct AddOffsets {
  static constexpr int threads = block_threads, phases = 1;
  struct Shared {};
  Scattering x;
  REHEARSE_BOTH void operator()(int, const BlockThread& at, Shared&) const {
    if (at.block == 0 && at.thread == 0) x.check_total();
    const std::byte* const offsets = x.places() + 4 * x.parts;
    std::int64_t end = x.before[at.block + 1];
    if (end > x.kernel.keep) end = x.kernel.keep;
    for (std::int64_t i = std::int64_t{x.before[at.block]} + at.thread; i < end; i += threads)
      x.add(i, at.block * program::delta_block + load_bytes<std::uint16_t>(offsets + 2 * i));
  }
};

/// Blocks share out the entries among themselves.
struct Finish {
  static constexpr int threads = block_threads, phases = 1;
  static constexpr std::int64_t most_blocks = 1024;
  struct Shared {};
  Scattering x;
  NormAndScale gradients;
  REHEARSE_BOTH void operator()(int, const BlockThread& at, Shared&) const {
    const float scale = gradients.scale();
    const bool damaged = *x.damaged != 0;
    if (scale == 1 && !damaged) return;
    for (std::int64_t i = at.block * threads + at.thread; i < x.end - x.begin;
         i += at.blocks * threads)
      x.target[i] = damaged ? std::numeric_limits<float>::quiet_NaN() : x.target[i] * scale;
  }
};

std::int64_t parts_of(const program::Kernel& kernel) {
  switch (kernel.coding) {
    case program::Coding::index32:
    case program::Coding::values:
      return 0;
    case program::Coding::bitmap:
      return tiles_of(kernel.of);
    case program::Coding::delta16:
      return (kernel.of + program::delta_block - 1) / program::delta_block;
  }
  return 0;
}

cudaError_t add_packet(const Scattering& x, cudaStream_t stream) {
  if (x.parts == 0) return each(x.kernel.keep, stream, AddIndexed{x});
  const bool bitmap = x.kernel.coding == program::Coding::bitmap;
  cudaError_t error = cudaMemsetAsync(x.before + x.parts, 0, sizeof *x.before, stream);
  if (error == cudaSuccess)
    error =
        bitmap ? each_block(x.parts, stream, CountBits{x}) : each(x.parts, stream, CopyCounts{x});
  if (error == cudaSuccess) error = each_block(1, stream, SumBefore{x.before, x.parts + 1});
  if (error == cudaSuccess)
    error = bitmap ? each_block(x.parts, stream, AddMarked{x})
                   : each_block(x.parts, stream, AddOffsets{x});
  return error;
}

}  // namespace

std::int64_t scatter_bytes(const program::Kernel& kernel) { return 4 * (parts_of(kernel) + 2); }

cudaError_t queue_scatter(const program::Kernel& kernel, const SelectStep& step,
                          const std::byte* packets, std::int64_t count, std::int64_t begin,
                          std::int64_t end, float* target, std::byte* working,
                          cudaStream_t stream) {
  auto* const numbers = reinterpret_cast<std::uint32_t*>(working);
  Scattering x{kernel, begin, end, target, packets, numbers, numbers + 1, parts_of(kernel)};
  cudaError_t error =
      cudaMemsetAsync(target, 0, static_cast<std::size_t>(4 * (end - begin)), stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(x.damaged, 0, sizeof *x.damaged, stream);
  for (std::int64_t i = 0; i < count && error == cudaSuccess; ++i, x.one += packet_room(kernel))
    error = add_packet(x, stream);
  const std::int64_t blocks = (end - begin + block_threads - 1) / block_threads;
  if (error == cudaSuccess)
    error = each_block(std::min(blocks, Finish::most_blocks), stream, Finish{x, step.gradients});
  return error;
}

}  // namespace rehearse::runtime
