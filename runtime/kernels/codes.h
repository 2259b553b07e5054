// The arithmetic of single codes of quantised gradients, for quantise.cpp and for kernels of a GPU,
// as elements.h.
#pragma once
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/program/program.h"
#include "runtime/kernels/elements.h"

namespace rehearse::runtime {

constexpr bool is_sign(const program::Kernel& kernel) { return kernel.bits == 1; }
constexpr bool has_scales(const program::Kernel& kernel) {
  return kernel.compressor != program::Compressor::vote;
}
/// Whether a scale follows from a sum of squares; of others but int8, from one of magnitudes.
constexpr bool by_squares(const program::Kernel& kernel) {
  return kernel.compressor == program::Compressor::stochastic ||
         kernel.compressor == program::Compressor::sign_rms;
}
/// The largest code of a compressor.
constexpr std::int32_t levels_of(const program::Kernel& kernel) {
  return (1 << (kernel.bits - 1)) - 1;
}

/// The scale of a block of `entries`: `largest`, the bits of their largest magnitude, for int8;
/// `sum`, of their magnitudes or squares, for others. NaN when an entry was not finite, or twice
/// the scale would not be. Scales whose inverse would overflow become 0.
REHEARSE_BOTH float scale_of(const program::Kernel& kernel, std::int32_t largest, double sum,
                             std::int64_t entries) {
  if (!has_scales(kernel)) return 1;
  double exact = sum / static_cast<double>(entries);
  if (kernel.compressor == program::Compressor::int8)
    exact = double{std::bit_cast<float>(largest)} / levels_of(kernel);
  if (kernel.compressor == program::Compressor::stochastic)
    exact = std::sqrt(sum) / levels_of(kernel);
  if (kernel.compressor == program::Compressor::sign_rms) exact = std::sqrt(exact);
  const auto rounded = static_cast<float>(exact);
  if (!(rounded <= FLT_MAX / 2)) return std::numeric_limits<float>::quiet_NaN();
  return !is_sign(kernel) && rounded < FLT_MIN ? 0 : rounded;
}

REHEARSE_BOTH std::int8_t nearest_code(float value, float inverse) {
  // Adding 1.5 x 2^23 rounds to a whole number, ties to even; it is in the lowest bits.
  constexpr float magic = 12582912.0F;
  return static_cast<std::int8_t>(std::bit_cast<std::int32_t>(value * inverse + magic) -
                                  std::bit_cast<std::int32_t>(magic));
}

/// Rounds to the whole number below or above, at random, so that the mean is the number. In fixed
/// point with 20 bits after the point; `draw`: random bits.
REHEARSE_BOTH std::int8_t random_code(float value, float inverse, std::uint32_t draw,
                                      std::int32_t levels) {
  const auto fixed = static_cast<std::int32_t>(std::fabs(value) * inverse * 0x1p20F);
  const std::int32_t level =
      std::min(levels, (fixed + static_cast<std::int32_t>(draw >> 12)) >> 20);
  return static_cast<std::int8_t>(value < 0 ? -level : level);
}

/// 1 for values of at least 0, else 0.
REHEARSE_BOTH std::int8_t sign_code(float value) { return static_cast<std::int8_t>(value >= 0); }

/// What a code stands for is step x code + offset: of a sign (0 or 1), 2 scale x code - scale.
struct Meaning {
  float step = 0, offset = 0;
  REHEARSE_BOTH float of(std::int8_t code) const {
    return step * static_cast<float>(code) + offset;
  }
};
REHEARSE_BOTH Meaning meaning_of(const program::Kernel& kernel, float scale) {
  return is_sign(kernel) ? Meaning{2 * scale, -scale} : Meaning{scale, 0};
}

/// Entries of a packet that are no padding, when it begins at entry `begin` of the gradient.
REHEARSE_BOTH std::int64_t entries_from(const program::Kernel& kernel, std::int64_t begin) {
  const std::int64_t left = kernel.of - begin;
  return left < 0 ? 0 : left < kernel.keep ? left : kernel.keep;
}

}  // namespace rehearse::runtime
