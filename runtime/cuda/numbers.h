// Numbers in the memory of a device, for kernels.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/program/program.h"
#include "runtime/kernels/elements.h"

namespace rehearse::runtime {

/// Element `i` of f32, bf16 or f16 values.
REHEARSE_BOTH float load(const void* values, program::DType type, std::int64_t i) {
  if (type == program::DType::f32) return static_cast<const float*>(values)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(values)[i];
  return type == program::DType::bf16 ? from_bf16(bits) : from_f16(bits);
}

REHEARSE_BOTH void store(void* values, program::DType type, std::int64_t i, float value) {
  if (type == program::DType::f32)
    static_cast<float*>(values)[i] = value;
  else
    static_cast<std::uint16_t*>(values)[i] =
        type == program::DType::bf16 ? to_bf16(value) : to_f16(value);
}

/// A number of a packet, which may begin at any byte.
template <class T>
REHEARSE_BOTH T load_bytes(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <class T>
REHEARSE_BOTH void store_bytes(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

}  // namespace rehearse::runtime
