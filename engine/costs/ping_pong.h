// The Topology Profiler's schedule and arithmetic (Sun 2026, section 3.1: latency and bandwidth of
// every pair of devices "via small all-to-all ping-pong tests"). What is played on the simulator
// and measured between real ranks is the same list of rounds and legs, and becomes latencies and
// bandwidths by the same estimator.
//
// A pair exchanges three kinds of ping-pong, each several times: a small message there and back,
// whose time is two latencies; a large one there and a small one back, which takes longer by the
// large one's bytes over the bandwidth of the way there; and the same the other way round. No clock
// is shared: a round trip is all that two ranks can time, so both directions have half its latency.
// What is kept is the median, with the median absolute deviation beside it: one hiccup of the
// machine moves neither.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/program/program.h"

namespace rehearse::costs {

double median(std::vector<double> values);  // 0 of none
/// Median distance from the median.
double median_deviation(const std::vector<double>& values);

/// Rounds of pairs (lower, higher) of devices, each pair once. The pairs of a round are disjoint,
/// and no two of them touch the same node, where they would share a NIC and measure each other. On
/// nodes of one device these are the n - 1 rounds of a round-robin tournament (n when n is odd);
/// otherwise each of its rounds is divided.
using PairRound = std::vector<std::pair<Id, Id>>;
std::vector<PairRound> pairing_rounds(std::span<const Id> node_of);

struct PingPong {
  std::int64_t small = 4, large = 1 << 20;  // bytes
  int repeats = 9;
};
/// One ping-pong: bytes there and back again.
struct RoundTrip {
  std::int64_t there = 0, back = 0;
};
inline constexpr int legs_per_repeat = 3;
/// Leg 0: small both ways; 1: large there; 2: large back.
RoundTrip leg_of(const PingPong& settings, int leg);

/// Seconds of the legs of one pair, `repeats` of each.
struct PingPongTimes {
  std::vector<double> legs[legs_per_repeat] = {};
};
/// From `a` (who begins) to `b` and from `b` to `a`.
std::pair<PairTime, PairTime> estimate(Id a, Id b, const PingPongTimes& times,
                                       const PingPong& settings);

}  // namespace rehearse::costs
