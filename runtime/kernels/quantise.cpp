// Walks each packet by blocks, and large blocks by pieces that stay in the first-level cache. With
// a residual, v = source + residual is made in the place of the residual; the residual is what is
// left of it. A block that is larger than a piece is read twice: for its scale, and for its codes.
#include "runtime/kernels/quantise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/program/packets.h"
#include "runtime/kernels/codes.h"
#include "runtime/kernels/floats.h"
#include "runtime/kernels/vectorised.h"

namespace rehearse::runtime {
namespace {

using program::Compressor;
using program::Kernel;

constexpr std::int64_t most = float_block;  // entries of a piece
using Codes = std::array<std::int8_t, most>;

REHEARSE_VECTORISED void add_source(const float* __restrict source, float* __restrict v,
                                    std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) v[i] += source[i];
}

/// The bits of the largest magnitude, which order as unsigned numbers: those of an infinity and of
/// NaN are above those of all finite numbers.
REHEARSE_VECTORISED std::int32_t largest_magnitude(const float* v, std::int64_t n) {
  std::int32_t most_bits = 0;
  for (std::int64_t i = 0; i < n; ++i)
    most_bits = std::max(most_bits, std::bit_cast<std::int32_t>(v[i]) & 0x7fffffff);
  return most_bits;
}

/// The sum of f(v), in fixed lanes, so that every version of the loop adds in the same order.
template <class F>
[[gnu::always_inline]] inline double sum_in_lanes(const float* v, std::int64_t n, F f) {
  constexpr int lanes = 16;
  std::array<double, lanes> sums = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += f(double{v[i + lane]});
  double sum = 0;
  for (const double one : sums) sum += one;
  for (; i < n; ++i) sum += f(double{v[i]});
  return sum;
}
REHEARSE_VECTORISED double sum_of_magnitudes(const float* v, std::int64_t n) {
  return sum_in_lanes(v, n, [](double one) { return std::fabs(one); });
}
REHEARSE_VECTORISED double sum_of_squares(const float* v, std::int64_t n) {
  return sum_in_lanes(v, n, [](double one) { return one * one; });
}

REHEARSE_VECTORISED void round_to_nearest(const float* v, float inverse, std::int64_t n,
                                          std::int8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = nearest_code(v[i], inverse);
}

REHEARSE_VECTORISED void round_at_random(const float* v, float inverse, std::int64_t n,
                                         RandomKey key, std::uint32_t first, std::int32_t levels,
                                         std::int8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i)
    codes[i] =
        random_code(v[i], inverse, random_bits(key, first + static_cast<std::uint32_t>(i)), levels);
}

REHEARSE_VECTORISED void take_signs(const float* v, std::int64_t n, std::int8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = sign_code(v[i]);
}

REHEARSE_VECTORISED void subtract(Meaning meaning, const std::int8_t* __restrict codes,
                                  std::int64_t n, float* __restrict v) {
  for (std::int64_t i = 0; i < n; ++i) v[i] -= meaning.of(codes[i]);
}
REHEARSE_VECTORISED void decode(Meaning meaning, const std::int8_t* __restrict codes,
                                std::int64_t n, float* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = meaning.of(codes[i]);
}
REHEARSE_VECTORISED void decode_add(Meaning meaning, const std::int8_t* __restrict codes,
                                    std::int64_t n, float* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] += meaning.of(codes[i]);
}

/// Packs n codes, rounded up to whole bytes, into `out`; codes beyond n must be there.
REHEARSE_VECTORISED void pack(const std::int8_t* codes, std::int64_t n, int bits, std::byte* out) {
  const auto* const c = reinterpret_cast<const std::uint8_t*>(codes);
  auto* const to = reinterpret_cast<std::uint8_t*>(out);
  const std::int64_t bytes = (n * bits + 7) / 8;
  if (bits == 8) {
    std::memcpy(to, c, static_cast<std::size_t>(n));
  } else if (bits == 4) {
    for (std::int64_t i = 0; i < bytes; ++i)
      to[i] = static_cast<std::uint8_t>((c[2 * i] & 15U) | c[2 * i + 1] << 4);
  } else if (bits == 2) {
    for (std::int64_t i = 0; i < bytes; ++i)
      to[i] = static_cast<std::uint8_t>((c[4 * i] & 3U) | (c[4 * i + 1] & 3U) << 2 |
                                        (c[4 * i + 2] & 3U) << 4 | c[4 * i + 3] << 6);
  } else {
    // Eight bytes of 0 or 1 become the bits of the highest byte of the product.
    for (std::int64_t i = 0; i < bytes; ++i) {
      std::uint64_t eight = 0;
      std::memcpy(&eight, c + 8 * i, 8);
      to[i] = static_cast<std::uint8_t>(eight * 0x0102040810204080U >> 56);
    }
  }
}

/// The codes of n entries, rounded up to whole bytes.
REHEARSE_VECTORISED void unpack(const std::byte* in, std::int64_t n, int bits, std::int8_t* codes) {
  const auto* const from = reinterpret_cast<const std::uint8_t*>(in);
  const std::int64_t bytes = (n * bits + 7) / 8;
  const auto signed_part = [](std::uint8_t byte, int left, int width) {
    return static_cast<std::int8_t>(static_cast<std::int8_t>(byte << left) >> (8 - width));
  };
  if (bits == 8) {
    std::memcpy(codes, from, static_cast<std::size_t>(n));
  } else if (bits == 4) {
    for (std::int64_t i = 0; i < bytes; ++i) {
      codes[2 * i] = signed_part(from[i], 4, 4);
      codes[2 * i + 1] = signed_part(from[i], 0, 4);
    }
  } else if (bits == 2) {
    for (std::int64_t i = 0; i < bytes; ++i)
      for (int j = 0; j < 4; ++j) codes[4 * i + j] = signed_part(from[i], 6 - 2 * j, 2);
  } else {
    // Bit j of a byte becomes bit j of byte j, and then 1.
    for (std::int64_t i = 0; i < bytes; ++i) {
      const std::uint64_t spread = from[i] * 0x0101010101010101U & 0x8040201008040201U;
      const std::uint64_t ones = (spread + 0x7f7f7f7f7f7f7f7fU) >> 7 & 0x0101010101010101U;
      std::memcpy(codes + 8 * i, &ones, 8);
    }
  }
}

/// What the scale of a block follows from.
struct Measure {
  std::int32_t largest = 0;  // bits of the largest magnitude
  double sum = 0;            // of magnitudes or of squares
  std::int64_t entries = 0;

  void look(const Kernel& kernel, const float* v, std::int64_t n) {
    entries += n;
    if (kernel.compressor == Compressor::int8)
      largest = std::max(largest, largest_magnitude(v, n));
    else if (has_scales(kernel))
      sum += by_squares(kernel) ? sum_of_squares(v, n) : sum_of_magnitudes(v, n);
  }

  float scale(const Kernel& kernel) const { return scale_of(kernel, largest, sum, entries); }
};

/// Quantises one packet.
class Packer {
 public:
  Packer(const Kernel& kernel, RandomKey key, const void* source, program::DType type,
         float* residual, std::byte* packet)
      : kernel_(kernel),
        key_(key),
        source_(source),
        type_(type),
        residual_(residual),
        scales_(packet),
        codes_(packet + scale_bytes(kernel)) {}

  /// `at`: the packet's first entry in source and residual; `begin`: in the gradient; `n`: entries
  /// that are no padding.
  void run(std::int64_t at, std::int64_t begin, std::int64_t n) {
    at_ = at, first_ = static_cast<std::uint32_t>(begin);
    if (n < kernel_.keep)
      std::memset(scales_, 0, static_cast<std::size_t>(quantised_bytes(kernel_)));
    for (std::int64_t block = 0; block < n; block += kernel_.block)
      one_block(block, std::min(n, block + kernel_.block));
    if (residual_ != nullptr) std::fill_n(residual_ + at + n, kernel_.keep - n, 0.0F);
  }

 private:
  void one_block(std::int64_t begin, std::int64_t end) {
    Measure measure;
    for (std::int64_t i = begin; i < end; i += most) {
      const std::int64_t n = std::min(most, end - i);
      if (residual_ != nullptr) add_source(load(i, n), residual_ + at_ + i, n);
      measure.look(kernel_, entries(i, n), n);
    }
    const float scale = measure.scale(kernel_);
    if (has_scales(kernel_)) std::memcpy(scales_ + begin / kernel_.block * 4, &scale, sizeof scale);
    for (std::int64_t i = begin; i < end; i += most) piece(i, std::min(most, end - i), scale);
  }

  void piece(std::int64_t i, std::int64_t n, float scale) {
    Codes codes;
    const auto padding = static_cast<std::size_t>((n + 7) / 8 * 8 - n);
    std::memset(codes.data() + n, 0, padding);
    const float* const v = entries(i, n);
    if (!std::isfinite(scale) || (scale == 0 && !is_sign(kernel_)))
      std::memset(codes.data(), 0, static_cast<std::size_t>(n));
    else if (kernel_.compressor == Compressor::int8)
      round_to_nearest(v, 1 / scale, n, codes.data());
    else if (kernel_.compressor == Compressor::stochastic)
      round_at_random(v, 1 / scale, n, key_, first_ + static_cast<std::uint32_t>(i),
                      levels_of(kernel_), codes.data());
    else
      take_signs(v, n, codes.data());
    pack(codes.data(), n, kernel_.bits, codes_ + i * kernel_.bits / 8);
    if (residual_ == nullptr) return;
    if (std::isfinite(scale))
      subtract(meaning_of(kernel_, scale), codes.data(), n, residual_ + at_ + i);
    else
      std::fill_n(residual_ + at_ + i, n, 0.0F);
  }

  const float* load(std::int64_t i, std::int64_t n) {
    return as_f32(source_, type_, at_ + i, n, converted_.data());
  }
  /// v = source + residual, which stands in the residual's memory by now; the source, without one.
  const float* entries(std::int64_t i, std::int64_t n) {
    return residual_ != nullptr ? residual_ + at_ + i : load(i, n);
  }

  const Kernel& kernel_;
  RandomKey key_;
  const void* source_;
  program::DType type_;
  float* residual_;
  std::byte* scales_;
  std::byte* codes_;
  std::int64_t at_ = 0;
  std::uint32_t first_ = 0;
  std::array<float, most> converted_;
};

/// Calls `take(meaning, codes, n)` for entries [i, i + n) of a packet, which lie in one block.
template <class Take>
void read_piece(const Kernel& kernel, const std::byte* packet, std::int64_t i, std::int64_t n,
                Take take) {
  float scale = 1;
  if (has_scales(kernel)) std::memcpy(&scale, packet + i / kernel.block * 4, sizeof scale);
  const std::byte* const from = packet + scale_bytes(kernel) + i * kernel.bits / 8;
  if (kernel.bits == 8) {
    take(meaning_of(kernel, scale), reinterpret_cast<const std::int8_t*>(from), n);
    return;
  }
  Codes codes;
  unpack(from, n, kernel.bits, codes.data());
  take(meaning_of(kernel, scale), codes.data(), n);
}

/// Calls `one(i, n)` for pieces of [0, end), none of which crosses a block.
template <class One>
void for_pieces(const Kernel& kernel, std::int64_t end, One one) {
  for (std::int64_t block = 0; block < end; block += kernel.block)
    for (std::int64_t i = block; i < std::min(end, block + kernel.block); i += most)
      one(i, std::min({most, end - i, block + kernel.block - i}));
}

}  // namespace

void quantise(const Kernel& kernel, RandomKey key, const void* source, program::DType type,
              std::int64_t begin, std::int64_t parts, float* residual, std::byte* packets) {
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t at = part * kernel.keep;
    Packer(kernel, key, source, type, residual, packets + part * quantised_bytes(kernel))
        .run(at, begin + at, entries_from(kernel, begin + at));
  }
}

void dequantise(const Kernel& kernel, const std::byte* packets, std::int64_t count, float* target) {
  for (std::int64_t p = 0; p < count; ++p) {
    const std::byte* const packet = packets + p * quantised_bytes(kernel);
    float* const to = target + p * kernel.keep;
    const std::int64_t entries = entries_from(kernel, p * kernel.keep);
    for_pieces(kernel, entries, [&](std::int64_t i, std::int64_t n) {
      read_piece(kernel, packet, i, n, [&](Meaning meaning, const std::int8_t* codes, auto some) {
        decode(meaning, codes, some, to + i);
      });
    });
    std::fill_n(to + entries, kernel.keep - entries, 0.0F);
  }
}

void dequantise_sum(const Kernel& kernel, const std::byte* packets, std::int64_t count,
                    std::int64_t begin, float* target) {
  const std::int64_t entries = entries_from(kernel, begin);
  for_pieces(kernel, entries, [&](std::int64_t i, std::int64_t n) {
    for (std::int64_t p = 0; p < count; ++p)
      read_piece(kernel, packets + p * quantised_bytes(kernel), i, n,
                 [&](Meaning meaning, const std::int8_t* codes, auto some) {
                   (p == 0 ? decode : decode_add)(meaning, codes, some, target + i);
                 });
  });
  std::fill_n(target + entries, kernel.keep - entries, 0.0F);
}

}  // namespace rehearse::runtime
