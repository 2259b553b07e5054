// Orders and random numbers that are computed, not stored: equal arguments give equal results on
// every machine.
#pragma once
#include <cstdint>

namespace rehearse::runtime {

/// The place of `index` in a permutation of [0, count) chosen by `key`: the order of an epoch
/// without a table. A Feistel network is applied again until the result is below `count`.
std::int64_t permute(std::int64_t index, std::int64_t count, std::uint64_t key);

/// A hash of both arguments, the same on every machine, used as counter-based random numbers (after
/// SplitMix64's finaliser, Steele et al. 2014).
std::uint64_t hash(std::uint64_t a, std::uint64_t b);

}  // namespace rehearse::runtime
