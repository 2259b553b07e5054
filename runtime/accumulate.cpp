#include "runtime/accumulate.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// -O2 of GCC 12 leaves loops of unknown length scalar.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

namespace rehearse {
namespace {

template <class T>
void add(T* __restrict into, const T* __restrict from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) into[i] = static_cast<T>(into[i] + from[i]);
}

float from_bf16(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? 0x7fc0U : rounded);
}

void add_bf16(std::uint16_t* __restrict into, const std::uint16_t* __restrict from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) into[i] = to_bf16(from_bf16(into[i]) + from_bf16(from[i]));
}

float from_f16(std::uint16_t x) {
  const std::uint32_t sign = (x & 0x8000U) << 16;
  const std::uint32_t exponent = (x >> 10) & 0x1fU;
  const std::uint32_t fraction = x & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

std::uint16_t to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (magnitude >= 65520.0F) return static_cast<std::uint16_t>(sign | 0x7c00U);
  if (magnitude < 0x1p-14F) {  // subnormal: multiples of 2^-24; the default rounding is to even
    return static_cast<std::uint16_t>(
        sign | static_cast<std::uint16_t>(std::nearbyint(magnitude * 0x1p24F)));
  }
  const std::uint32_t narrow = (bits & 0x7fffffffU) - (112U << 23);
  return static_cast<std::uint16_t>(sign | ((narrow + 0xfffU + ((narrow >> 13) & 1U)) >> 13));
}

void add_f16(std::uint16_t* into, const std::uint16_t* from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) into[i] = to_f16(from_f16(into[i]) + from_f16(from[i]));
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void add_f16_wide(std::uint16_t* into,
                                                      const std::uint16_t* from, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    auto* a = reinterpret_cast<__m128i*>(into + i);
    const auto* b = reinterpret_cast<const __m128i*>(from + i);
    const __m256 sum =
        _mm256_add_ps(_mm256_cvtph_ps(_mm_loadu_si128(a)), _mm256_cvtph_ps(_mm_loadu_si128(b)));
    _mm_storeu_si128(a, _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  add_f16(into + i, from + i, n - i);
}
#endif

}  // namespace

void accumulate(void* into, const void* from, std::int64_t elements, DType dtype) {
  const auto n = static_cast<std::size_t>(elements);
  switch (dtype) {
    case DType::f32:
      add(static_cast<float*>(into), static_cast<const float*>(from), n);
      return;
    case DType::i32:
      add(static_cast<std::uint32_t*>(into), static_cast<const std::uint32_t*>(from), n);
      return;
    case DType::u8:
      add(static_cast<std::uint8_t*>(into), static_cast<const std::uint8_t*>(from), n);
      return;
    case DType::bf16:
      add_bf16(static_cast<std::uint16_t*>(into), static_cast<const std::uint16_t*>(from), n);
      return;
    case DType::f16:
#if defined(__x86_64__)
      // Every processor with AVX2 has F16C, which not every compiler can ask for.
      static const bool wide = __builtin_cpu_supports("avx2") != 0;
      if (wide) {
        add_f16_wide(static_cast<std::uint16_t*>(into), static_cast<const std::uint16_t*>(from), n);
        return;
      }
#endif
      add_f16(static_cast<std::uint16_t*>(into), static_cast<const std::uint16_t*>(from), n);
      return;
  }
}

}  // namespace rehearse
