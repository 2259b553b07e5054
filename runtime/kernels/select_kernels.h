// The inner loops of selection, by AVX-512 where the processor has it and in plain code that gives
// the same bits elsewhere.
#pragma once
#include <bit>
#include <cstdint>

namespace rehearse::runtime {

inline constexpr std::uint32_t beyond_all = 0xffffffffU;  // more than any magnitude's bits
inline std::uint32_t magnitude_of(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

struct Threshold {
  std::uint32_t bits = 0;  // of the keep-th largest magnitude
  std::int64_t ties = 0;   // of the entries that equal it so many belong to the keep largest
  std::int64_t equal = 0;  // ... of so many that there are
};
/// 1 <= keep <= elements.
Threshold threshold_of(const float* values, std::int64_t elements, std::int64_t keep);

/// How an entry is made: v = gradient + use x residual; what stays if it is not sent is
/// gradient + beta x residual. `remove`: what is collected is taken out of it at once.
struct EntryRule {
  bool use = true, remove = true;
  float beta = 1;
};
/// Collects the entries whose magnitude's bits reach `least`, with their places counted from
/// `first`, and writes the residual. Returns how many there are; up to 16 more places behind them
/// are written.
std::int64_t pass(const EntryRule& rule, const float* gradient, float* residual, std::int64_t n,
                  std::uint32_t first, std::uint32_t least, float* values, std::uint32_t* indices);
/// Of n candidates leaves the largest, in place; what is dropped goes back to `back` (null:
/// nowhere). Returns how many are left.
std::int64_t keep_largest(float* values, std::uint32_t* indices, std::int64_t n,
                          const Threshold& threshold, float* back);

}  // namespace rehearse::runtime
