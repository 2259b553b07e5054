// The inner loops of `select`: with AVX-512 where the processor has it, otherwise plain code with
// the same bits as result. Magnitudes are compared by their bits: without the sign bit, floats
// order like unsigned integers.
#pragma once
#include <bit>
#include <cstdint>

namespace rehearse::runtime {

/// A bound above every magnitude's bits: nothing is collected.
inline constexpr std::uint32_t beyond_all = 0xffffffffU;
inline std::uint32_t magnitude_of(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

/// The keep-th largest magnitude of a list of values.
struct Threshold {
  std::uint32_t bits = 0;  // its bits
  std::int64_t ties = 0;   // of the entries equal to it, how many are among the keep largest
  std::int64_t equal = 0;  // how many entries equal it in all
};
/// Requires 1 <= keep <= elements. `room`: for `elements` numbers, which are overwritten.
Threshold threshold_of(const float* values, std::int64_t elements, std::int64_t keep,
                       std::uint32_t* room);

/// How `pass` treats an entry: v = gradient + residual (`use`) or v = gradient; the new residual is
/// gradient + beta x residual. With `remove`, v is subtracted from the new residual of every
/// collected entry.
struct EntryRule {
  bool use = true, remove = true;
  float beta = 1;
};
/// Collects v and index (counted from `first`) of the entries whose magnitude's bits reach `least`,
/// and writes the residual of all `n` entries. Returns how many it collected. `values` and
/// `indices` need room for 16 more, which are overwritten.
std::int64_t pass(const EntryRule& rule, const float* gradient, float* residual, std::int64_t n,
                  std::uint32_t first, std::uint32_t least, float* values, std::uint32_t* indices);
/// Leaves the largest of n candidates, in place and in order. Writes the dropped values to `back`
/// at their indices (null: to nowhere). Returns how many are left.
std::int64_t keep_largest(float* values, std::uint32_t* indices, std::int64_t n,
                          const Threshold& threshold, float* back);

}  // namespace rehearse::runtime
