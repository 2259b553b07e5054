// Sizes of the packets of sparse and of quantised exchanges, for programs, costs, executors and
// tests. A packet of a sparse exchange holds k of n entries of a gradient: their f32 values, and
// which entries they are in one of four codings (rising indices):
//
//   index32   | k values: 4k bytes | k indices: 4k |
//   bitmap    | k values: 4k bytes | one bit per entry: ceil(n / 8) |
//   delta16   | k values: 4k bytes | a count per block of 65,536: 4 ceil(n / 65536) | offsets: 2k |
//   values    | k values: 4k bytes |
//
// With Selector::threshold the number of entries varies. Such a packet begins with a 32-bit count
// and has room for more entries than are wanted.
//
// A packet of a quantised exchange holds k entries in a row, as codes of b bits; with a block of B
// entries for each scale:
//
//   | scales, f32: 4 ceil(k / B) bytes | codes: ceil(k b / 8), entry 0 in the lowest bits |
//
// Votes have no scales.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::program {

inline constexpr std::int64_t delta_block = 65536;  // entries of a block: what 16 bits can address

/// The codings that serve a selector; the first one is the default.
std::vector<Coding> codings_of(Selector selector);

/// k = ceil(density x n) (Sun 2026, eq. 4), without the rounding error of `density`: density 0.3
/// keeps 3 of 10 entries, although the double 0.3 is not exactly 3/10. At least one entry, if the
/// density is not 0.
std::int64_t entries_kept(std::int64_t n, double density);

/// Bytes of a packet of k of n entries, as in the picture above; without a count.
std::int64_t packet_bytes(std::int64_t n, std::int64_t k, Coding coding);

/// Bytes of the count that a packet begins with; 0 when its number of entries is fixed.
constexpr std::int64_t packet_header(Selector selector) {
  return selector == Selector::threshold ? 4 : 0;
}
/// The most entries in a packet when k are wanted: min(n, 2k) for a threshold, otherwise k.
std::int64_t packet_capacity(std::int64_t n, std::int64_t k, Selector selector);
/// Bytes of a packet of `kernel.keep` entries, count included. Programs state this size, and the
/// simulator sends it.
std::int64_t packet_bytes(const Kernel& kernel);
/// The most bytes that a packet of `kernel` may take.
std::int64_t packet_room(const Kernel& kernel);

/// Whether a kernel makes or reads packets of codes.
constexpr bool quantises(const Kernel& kernel) {
  return kernel.kind == KernelKind::quantise || kernel.kind == KernelKind::dequantise;
}
/// Bytes of the scales that a packet of codes begins with, and of the whole packet.
std::int64_t scale_bytes(const Kernel& kernel);
std::int64_t quantised_bytes(const Kernel& kernel);
/// Whether a compressor makes codes of so many bits: int8 8, stochastic 2, 4 or 8, others 1. And
/// the same as text.
bool codes_have(Compressor compressor, int bits);
std::string bits_text(Compressor compressor);

/// Bytes of workspace of a select beside its operands: 12 per candidate (value, index,
/// magnitude); a scatter_add that repeats a select's draws has the same. There is room for a
/// quarter and a block more candidates than the packet can hold.
std::int64_t select_workspace(const Kernel& kernel);
std::int64_t select_candidates(const Kernel& kernel);

}  // namespace rehearse::program
