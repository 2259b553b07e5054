// The profiler's rounds of pairs and its estimator, against values worked out by hand.
#include "engine/costs/network/ping_pong.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "engine/cluster/cluster.h"

namespace rehearse::costs {
namespace {

std::vector<Id> alone(Id n) {
  std::vector<Id> nodes(n);
  std::iota(nodes.begin(), nodes.end(), Id{0});
  return nodes;
}

void expect_each_pair_once(const std::vector<PairRound>& rounds, const std::vector<Id>& node_of) {
  std::set<std::pair<Id, Id>> seen;
  for (const PairRound& round : rounds) {
    std::set<Id> devices;
    std::map<Id, int> pairs_on_node;
    for (const auto& [a, b] : round) {
      EXPECT_LT(a, b);
      EXPECT_TRUE(seen.insert({a, b}).second) << a << " " << b;
      EXPECT_TRUE(devices.insert(a).second);
      EXPECT_TRUE(devices.insert(b).second);
      for (const Id node : std::set<Id>{node_of[a], node_of[b]})
        EXPECT_EQ(++pairs_on_node[node], 1);
    }
  }
  EXPECT_EQ(seen.size(), node_of.size() * (node_of.size() - 1) / 2);
}

TEST(PingPong, TournamentOfFour) {
  // Seats 0 1 2 3 give (0,3) (1,2). Device 0 stays, the others move by one seat: 0 2 3 1 gives
  // (0,1) (2,3), and 0 3 1 2 gives (0,2) (1,3).
  using P = std::pair<Id, Id>;
  EXPECT_EQ(pairing_rounds(alone(4)),
            (std::vector<PairRound>{{P{0, 3}, P{1, 2}}, {P{0, 1}, P{2, 3}}, {P{0, 2}, P{1, 3}}}));
}

TEST(PingPong, RoundsAreDisjointAndComplete) {
  for (Id n = 1; n <= 33; ++n) {
    const auto rounds = pairing_rounds(alone(n));
    EXPECT_EQ(rounds.size(), n == 1 ? 0U : n % 2 == 0 ? n - 1 : n) << n;
    expect_each_pair_once(rounds, alone(n));
  }
  EXPECT_EQ(pairing_rounds(alone(32)).size(), 31U);
  EXPECT_TRUE(pairing_rounds({}).empty());
}

TEST(PingPong, NoTwoPairsOfARoundTouchANode) {
  for (const char* name : {"paper", "paper-homogeneous", "dgx-a100:2", "this-machine:3"}) {
    std::vector<Id> nodes;
    for (const cluster::Device& d : cluster::load_cluster(name).devices()) nodes.push_back(d.node);
    const auto rounds = pairing_rounds(nodes);
    expect_each_pair_once(rounds, nodes);
    // On `paper` (32 devices), a node of four is in 4 x 28 + 6 = 118 pairs, one pair per round.
    if (std::string(name) == "paper") {
      EXPECT_LE(rounds.size(), 2 * 118U);
    }
  }
}

TEST(PingPong, EstimatesByHand) {
  // There: 10 us and 1 GB/s. Back: 30 us and 0.5 GB/s. Small: 1,000 bytes, large: 101,000 bytes.
  // Leg 0: 10 + 30 us of latency + 1 + 2 us of bytes = 43 us. Leg 1: 43 + 100 = 143 us. Leg 2: 43 +
  // 200 = 243 us. The estimated latency is (43 - 3) / 2 = 20 us in both directions.
  const PingPong settings{.small = 1000, .large = 101000, .repeats = 3};
  PingPongTimes times;
  times.legs[0] = {43e-6, 43e-6, 900e-6};  // one outlier
  times.legs[1] = {143e-6, 7, 143e-6};
  times.legs[2] = {243e-6, 243e-6, 42e-6};  // the last is shorter than leg 0: ignored
  const auto [there, back] = estimate(3, 5, times, settings);
  EXPECT_EQ(there.from, 3U);
  EXPECT_EQ(there.to, 5U);
  EXPECT_EQ(back.from, 5U);
  EXPECT_EQ(back.to, 3U);
  EXPECT_NEAR(there.bandwidth, 1e9, 1);
  EXPECT_NEAR(back.bandwidth, 0.5e9, 1);
  EXPECT_NEAR(there.latency, 20e-6, 1e-12);
  EXPECT_NEAR(back.latency, 20e-6, 1e-12);
  EXPECT_NEAR(there.latency_spread, 0, 1e-12);
  // Most repeats are shorter than leg 0. Then 100,000 bytes in 40, 41 and 143 us are a lower bound.
  times.legs[1] = {40e-6, 143e-6, 41e-6};
  EXPECT_NEAR(estimate(3, 5, times, settings).first.bandwidth, 1e5 / 41e-6, 1);
}

}  // namespace
}  // namespace rehearse::costs
