// Blocks of values of the 16-bit types (bf16, f16) as fp32 and back, so that every arithmetic loop
// exists once, in fp32.
#pragma once
#include <algorithm>
#include <cstdint>

#include "engine/program/program.h"
#include "runtime/kernels/elements.h"

namespace rehearse::runtime {

inline constexpr std::int64_t float_block = 4096;  // elements that a kernel converts at a time

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
