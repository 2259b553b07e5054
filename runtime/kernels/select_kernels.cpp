#include "runtime/kernels/select_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#define REHEARSE_AVX512 1
#endif

namespace rehearse::runtime {
namespace {

constexpr std::int64_t vector = 16;

/// `pass` in plain code. Writes one entry beyond those that it collects.
template <bool Use, bool Remove, bool Decays>
std::int64_t pass_plain(const float* g, float* e, std::int64_t n, std::uint32_t first, float beta,
                        std::uint32_t least, float* values, std::uint32_t* indices) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = Use ? g[i] + e[i] : g[i];
    const float stays = Decays ? g[i] + beta * e[i] : v;
    const bool taken = magnitude_of(v) >= least;
    values[found] = v;
    indices[found] = first + static_cast<std::uint32_t>(i);
    found += taken;
    e[i] = Remove && taken ? stays - v : stays;
  }
  return found;
}

#ifdef REHEARSE_AVX512
template <bool Use, bool Remove, bool Decays>
__attribute__((target("avx512f"))) std::int64_t pass_avx512(const float* g, float* e,
                                                            std::int64_t n, std::uint32_t first,
                                                            float beta, std::uint32_t least,
                                                            float* values, std::uint32_t* indices) {
  const __m512i sign = _mm512_set1_epi32(0x7fffffff),
                bound = _mm512_set1_epi32(static_cast<int>(least));
  const __m512 betas = _mm512_set1_ps(beta);
  __m512i at =
      _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)),
                       _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  std::int64_t found = 0, i = 0;
  for (; i + vector <= n; i += vector) {
    const __m512 gradient = _mm512_loadu_ps(g + i), residual = _mm512_loadu_ps(e + i);
    const __m512 v = Use ? _mm512_add_ps(gradient, residual) : gradient;
    const __m512 stays = Decays ? _mm512_add_ps(gradient, _mm512_mul_ps(betas, residual)) : v;
    const __mmask16 taken =
        _mm512_cmpge_epu32_mask(_mm512_and_epi32(_mm512_castps_si512(v), sign), bound);
    // Compressed in a register: compressing stores are slow on some processors.
    _mm512_storeu_ps(values + found, _mm512_maskz_compress_ps(taken, v));
    _mm512_storeu_si512(indices + found, _mm512_maskz_compress_epi32(taken, at));
    found += std::popcount(static_cast<unsigned>(taken));
    _mm512_storeu_ps(e + i, Remove ? _mm512_mask_sub_ps(stays, taken, stays, v) : stays);
    at = _mm512_add_epi32(at, _mm512_set1_epi32(vector));
  }
  return found + pass_plain<Use, Remove, Decays>(g + i, e + i, n - i,
                                                 first + static_cast<std::uint32_t>(i), beta, least,
                                                 values + found, indices + found);
}

/// keep_largest with AVX-512, for the case that all ties with the threshold are kept: leaves the
/// candidates whose magnitude's bits reach `least`.
__attribute__((target("avx512f"))) std::int64_t keep_avx512(float* values, std::uint32_t* indices,
                                                            std::int64_t n, std::uint32_t least,
                                                            float* back) {
  const __m512i sign = _mm512_set1_epi32(0x7fffffff),
                bound = _mm512_set1_epi32(static_cast<int>(least));
  alignas(64) std::array<float, vector> dropped;
  alignas(64) std::array<std::uint32_t, vector> places;
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < n; i += vector) {
    const auto there = static_cast<__mmask16>(n - i < vector ? (1U << (n - i)) - 1 : 0xffffU);
    const __m512 v = _mm512_maskz_loadu_ps(there, values + i);
    const __m512i index = _mm512_maskz_loadu_epi32(there, indices + i);
    const __mmask16 stays =
        _mm512_mask_cmpge_epu32_mask(there, _mm512_and_epi32(_mm512_castps_si512(v), sign), bound);
    _mm512_storeu_ps(values + kept, _mm512_maskz_compress_ps(stays, v));
    _mm512_storeu_si512(indices + kept, _mm512_maskz_compress_epi32(stays, index));
    kept += std::popcount(static_cast<unsigned>(stays));
    const auto goes = static_cast<__mmask16>(there & ~stays);
    if (goes == 0 || back == nullptr) continue;
    _mm512_store_ps(dropped.data(), _mm512_maskz_compress_ps(goes, v));
    _mm512_store_si512(places.data(), _mm512_maskz_compress_epi32(goes, index));
    for (int j = 0; j < std::popcount(static_cast<unsigned>(goes)); ++j)
      back[places[j]] = dropped[j];
  }
  return kept;
}
bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") != 0;
  return has;
}
#endif

template <bool Use, bool Remove, bool Decays>
std::int64_t pass(const float* g, float* e, std::int64_t n, std::uint32_t first, float beta,
                  std::uint32_t least, float* values, std::uint32_t* indices) {
#ifdef REHEARSE_AVX512
  if (has_avx512())
    return pass_avx512<Use, Remove, Decays>(g, e, n, first, beta, least, values, indices);
#endif
  return pass_plain<Use, Remove, Decays>(g, e, n, first, beta, least, values, indices);
}

}  // namespace

/// Radix select over three digits of the magnitude's bits, from the top. After the first digit only
/// the entries that share it are looked at.
///
///   bit  31 ...... 21 | 20 ...... 10 | 9 ....... 0
///        first digit    second digit   third digit
Threshold threshold_of(const float* values, std::int64_t elements, std::int64_t keep,
                       std::uint32_t* room) {
  constexpr std::size_t bins = std::size_t{1} << 11, copies = 4, counters = bins * copies;
  // Several copies of the histogram, so that consecutive increments of one bin do not wait for each
  // other.
  std::array<std::int64_t, counters> histogram = {};
  for (std::int64_t i = 0; i < elements; ++i)
    ++histogram[static_cast<std::size_t>(i) % copies * bins + (magnitude_of(values[i]) >> 21)];
  for (std::size_t i = bins; i < histogram.size(); ++i) histogram[i % bins] += histogram[i];
  Threshold out{.ties = keep};
  std::uint32_t digit = bins - 1;
  while (histogram[digit] < out.ties) out.ties -= histogram[digit--];
  out.bits = digit << 21;
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < elements; ++i) {
    const std::uint32_t m = magnitude_of(values[i]);
    room[found] = m;
    found += m >> 21 == digit;
  }
  for (const auto& [shift, mask] : {std::pair{10, 0x7ffU}, std::pair{0, 0x3ffU}}) {
    std::fill_n(histogram.begin(), bins, 0);
    const std::uint32_t above = ~((mask << shift) | ((1U << shift) - 1));
    for (std::int64_t i = 0; i < found; ++i)
      histogram[(room[i] >> shift) & mask] += (room[i] & above) == out.bits;
    digit = mask;
    while (histogram[digit] < out.ties) out.ties -= histogram[digit--];
    out.bits |= digit << shift;
  }
  out.equal = histogram[digit];
  return out;
}

std::int64_t pass(const EntryRule& rule, const float* g, float* e, std::int64_t n,
                  std::uint32_t first, std::uint32_t least, float* values, std::uint32_t* indices) {
  const auto run = [&](auto use, auto remove, auto decays) {
    return pass<use.value, remove.value, decays.value>(g, e, n, first, rule.beta, least, values,
                                                       indices);
  };
  const std::true_type yes;
  const std::false_type no;
  if (rule.use && rule.beta == 1) return rule.remove ? run(yes, yes, no) : run(yes, no, no);
  if (rule.use) return rule.remove ? run(yes, yes, yes) : run(yes, no, yes);
  return rule.remove ? run(no, yes, yes) : run(no, no, yes);
}

std::int64_t keep_largest(float* values, std::uint32_t* indices, std::int64_t n,
                          const Threshold& threshold, float* back) {
#ifdef REHEARSE_AVX512
  if (threshold.ties == threshold.equal && has_avx512())
    return keep_avx512(values, indices, n, threshold.bits, back);
#endif
  std::int64_t kept = 0, ties = threshold.ties;
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = values[i];
    const std::uint32_t m = magnitude_of(value), index = indices[i];
    const bool stays = m > threshold.bits || (m == threshold.bits && ties > 0);
    ties -= m == threshold.bits;
    values[kept] = value;
    indices[kept] = index;
    kept += stays;
    if (!stays && back != nullptr) back[index] = value;
  }
  return kept;
}

}  // namespace rehearse::runtime
