// How large the packets of a sparse exchange are. A packet holds k of n entries as their f32 values
// and, in one of three codings, which entries they are. A packet of a fixed number of entries says
// no more than that; one whose number a threshold decides begins with a 32-bit count, and is given
// room for more entries than are wanted. One definition for programs, costs, executors and tests.
#pragma once
#include <cstdint>

#include "engine/program/program.h"

namespace rehearse::program {

inline constexpr std::int64_t delta_block = 65536;  // entries that a 16-bit offset reaches

/// k = ceil(density x n) (Sun 2026, eq. 4) of the decimal fraction that `density` is the nearest
/// double of: of 10 entries 0.3 keeps 3, though 0.3 is not 3/10 to a computer.
std::int64_t entries_kept(std::int64_t n, double density);

/// Bytes of k values and of their places among n entries: 4k and 4k (index32), ceil(n / 8) (bitmap)
/// or 2k + 4 ceil(n / 65536) (delta16).
std::int64_t packet_bytes(std::int64_t n, std::int64_t k, Coding coding);

/// Bytes of the count that a packet begins with.
constexpr std::int64_t packet_header(Selector selector) {
  return selector == Selector::threshold ? 4 : 0;
}
/// Most entries in a packet of which k are wanted: twice as many where a threshold decides.
std::int64_t packet_capacity(std::int64_t n, std::int64_t k, Selector selector);
/// Bytes of a packet of `kernel.keep` entries, its count included: what programs state and
/// simulators send.
std::int64_t packet_bytes(const Kernel& kernel);
/// Bytes of memory that a packet of `kernel` may fill.
std::int64_t packet_room(const Kernel& kernel);

/// Bytes that a select works in beside its operands: candidates as (value, index), a quarter and a
/// block more than it keeps.
std::int64_t select_workspace(const Kernel& kernel);
std::int64_t select_candidates(const Kernel& kernel);

}  // namespace rehearse::program
