// The Topology Profiler's schedule and arithmetic (Sun 2026, section 3.1: latency and bandwidth of
// every pair of devices "via small all-to-all ping-pong tests"). The simulator and real ranks use
// the same rounds, legs and estimator. A pair (a, b) plays three legs, several times each:
//
//   leg 0   a --small--> b --small--> a     t0 = 2 latency (+ the small messages' bytes)
//   leg 1   a --large--> b --small--> a     t1 = t0 + (large - small) / bandwidth a to b
//   leg 2   a --small--> b --large--> a     t2 = t0 + (large - small) / bandwidth b to a
//
// Ranks share no clock, so they can only time round trips, and both directions get half of the
// latency. The results are medians with their median absolute deviations, which a single outlier
// does not move.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// Rounds of pairs (lower, higher) of devices; each pair occurs once. The pairs of a round are
/// disjoint and share no node, because pairs that share a NIC would slow each other down. With one
/// device per node, these are the n - 1 rounds (n if n is odd) of a round-robin tournament: for
/// n = 4 {03 12}, {01 23}, {02 13}. Otherwise each of those rounds is split. `node_of`: [device].
using PairRound = std::vector<std::pair<Id, Id>>;
std::vector<PairRound> pairing_rounds(std::span<const Id> node_of);

struct PingPong {
  std::int64_t small = 4, large = 1 << 20;  // bytes
  int repeats = 9;
};
/// One ping-pong: bytes from a to b and bytes back.
struct RoundTrip {
  std::int64_t there = 0, back = 0;
};
inline constexpr int legs_per_repeat = 3;
/// Messages of leg 0, 1 or 2 (see the head of this file).
RoundTrip leg_of(const PingPong& settings, int leg);

/// Seconds of one pair's round trips: [leg][repeat].
struct PingPongTimes {
  std::vector<double> legs[legs_per_repeat] = {};
};
/// The estimates a to b and b to a. `a` sends first.
std::pair<PairTime, PairTime> estimate(Id a, Id b, const PingPongTimes& times,
                                       const PingPong& settings);

}  // namespace rehearse::costs
