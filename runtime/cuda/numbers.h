// Numbers in the memory of a device, for kernels.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/kernels/elements.h"

namespace rehearse::runtime {

enum class CudaNumber : std::uint8_t { f32, bf16, f16 };

REHEARSE_BOTH float load(const void* values, CudaNumber type, std::int64_t i) {
  if (type == CudaNumber::f32) return static_cast<const float*>(values)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(values)[i];
  return type == CudaNumber::bf16 ? from_bf16(bits) : from_f16(bits);
}

REHEARSE_BOTH void store(void* values, CudaNumber type, std::int64_t i, float value) {
  if (type == CudaNumber::f32)
    static_cast<float*>(values)[i] = value;
  else
    static_cast<std::uint16_t*>(values)[i] =
        type == CudaNumber::bf16 ? to_bf16(value) : to_f16(value);
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
