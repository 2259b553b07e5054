// Conversions between the 16-bit types (bf16, f16) and fp32, of one value or of a block of values.
// With them every arithmetic loop exists once, in fp32. Rounding is to nearest, ties to even.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "engine/program/program.h"

namespace rehearse::runtime {

inline constexpr std::int64_t float_block = 4096;  // elements that a kernel converts at a time

inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? 0x7fc0U : rounded);
}
inline float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000U | (magnitude << 13));
  // Multiplying by 2^112 adjusts the exponent's bias. The product is exact, also for subnormal
  // numbers.
  return std::bit_cast<float>(
      sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112F));
}
inline std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // NaN: made quiet, upper payload bits kept, as F16C does
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x1ffU));
  }
  if (magnitude >= 0x477ff000U) return sign | 0x7c00;  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 in fp32 rounds to the nearest multiple of 2^-24, ties to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U);
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000U) >> 13);
}

/// Elements [begin, begin + count) of `values` as fp32: a pointer into `values` when they are f32,
/// otherwise `scratch` (room for `count`) with the converted values.
inline const float* as_f32(const void* values, program::DType type, std::int64_t begin,
                           std::int64_t count, float* scratch) {
  if (type == program::DType::f32) return static_cast<const float*>(values) + begin;
  const auto* bits = static_cast<const std::uint16_t*>(values) + begin;
  if (type == program::DType::bf16)
    std::transform(bits, bits + count, scratch, from_bf16);
  else
    std::transform(bits, bits + count, scratch, from_f16);
  return scratch;
}
/// Writes `count` fp32 values to elements [begin, begin + count) of `values`, rounded to `type`,
/// which is bf16 or f16.
inline void store_f32(const float* from, std::int64_t count, void* values, program::DType type,
                      std::int64_t begin) {
  auto* bits = static_cast<std::uint16_t*>(values) + begin;
  if (type == program::DType::bf16)
    std::transform(from, from + count, bits, to_bf16);
  else
    std::transform(from, from + count, bits, to_f16);
}

}  // namespace rehearse::runtime
