#include "runtime/kernels/accumulate.h"

#include <cstddef>

#include "runtime/kernels/floats.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rehearse::runtime {
namespace {

template <class T>
void add(T* __restrict into, const T* __restrict from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) into[i] = static_cast<T>(into[i] + from[i]);
}

void add_bf16(std::uint16_t* __restrict into, const std::uint16_t* __restrict from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) into[i] = to_bf16(from_bf16(into[i]) + from_bf16(from[i]));
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

void accumulate(void* into, const void* from, std::int64_t elements, program::DType dtype) {
  const auto n = static_cast<std::size_t>(elements);
  switch (dtype) {
    case program::DType::f32:
      add(static_cast<float*>(into), static_cast<const float*>(from), n);
      return;
    case program::DType::i32:
      add(static_cast<std::uint32_t*>(into), static_cast<const std::uint32_t*>(from), n);
      return;
    case program::DType::u8:
      add(static_cast<std::uint8_t*>(into), static_cast<const std::uint8_t*>(from), n);
      return;
    case program::DType::bf16:
      add_bf16(static_cast<std::uint16_t*>(into), static_cast<const std::uint16_t*>(from), n);
      return;
    case program::DType::f16:
#if defined(__x86_64__)
      // Asks for AVX2 because not every compiler can ask for F16C. Every processor with AVX2 has
      // F16C.
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

}  // namespace rehearse::runtime
