// Tests of exchanges: the chunk form and the fluid form of a schedule move the same bytes between
// the same members, and the fluid form has few rounds.
#include "sim/exchange.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace rehearse::sim {
namespace {

using Traffic = std::map<std::pair<int, int>, double>;

Traffic traffic_of(const Exchange& exchange) {
  Traffic traffic;
  std::vector<Hop> hops;
  for (int r = 0; r < exchange.rounds(); ++r) {
    exchange.round(r, -1, hops);
    for (const Hop& hop : hops) traffic[{hop.from, hop.to}] += hop.bytes;
  }
  return traffic;
}

struct Case {
  program::Algorithm algorithm = program::Algorithm::ring;
  int members = 2, on_node = 1;
};
std::ostream& operator<<(std::ostream& out, const Case& one) {
  static constexpr const char* names[] = {"automatic",        "ring",         "double_tree",
                                          "halving_doubling", "hierarchical", "direct"};
  return out << names[static_cast<int>(one.algorithm)] << "_" << one.members << "_on_"
             << one.on_node;
}

class Readings : public testing::TestWithParam<Case> {
 protected:
  /// The payload of 2^20 elements is large enough that a remainder of one element does not matter.
  std::unique_ptr<const collectives::Schedule> schedule_of(program::Move move) const {
    std::vector<Id> node_of;
    for (int i = 0; i < GetParam().members; ++i)
      node_of.push_back(static_cast<Id>(i / GetParam().on_node));
    return collectives::schedule(move, GetParam().algorithm, 1 << 20, node_of);
  }
};

TEST_P(Readings, MoveTheSameBytes) {
  const auto rounds = schedule_of(program::Move::all_reduce);
  const Exchange fluid = Exchange::joined(*rounds, 4);
  const Exchange chunk(schedule_of(program::Move::all_reduce), 4);
  EXPECT_LE(fluid.rounds(), chunk.rounds());
  const Traffic few = traffic_of(fluid);
  const Traffic many = traffic_of(chunk);
  ASSERT_EQ(few.size(), many.size());
  // Rounds that the schedule calls alike may differ by one element per transfer.
  for (const auto& [pair, bytes] : many) EXPECT_NEAR(few.at(pair), bytes, 4 * chunk.rounds());
}

TEST_P(Readings, GiveEachMemberItsOwnHops) {
  const Exchange fluid = Exchange::joined(*schedule_of(program::Move::all_reduce), 4);
  std::vector<Hop> all;
  std::vector<Hop> mine;
  for (int r = 0; r < fluid.rounds(); ++r) {
    fluid.round(r, -1, all);
    std::size_t ends = 0;
    for (int m = 0; m < fluid.members(); ++m) {
      fluid.round(r, m, mine);
      ends += mine.size();
      for (const Hop& hop : mine) EXPECT_TRUE(hop.from == m || hop.to == m);
    }
    EXPECT_EQ(ends, 2 * all.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Readings,
                         testing::Values(Case{program::Algorithm::ring, 2},
                                         Case{program::Algorithm::ring, 7},
                                         Case{program::Algorithm::ring, 8},
                                         Case{program::Algorithm::halving_doubling, 4},
                                         Case{program::Algorithm::halving_doubling, 8},
                                         Case{program::Algorithm::halving_doubling, 6},
                                         Case{program::Algorithm::double_tree, 8},
                                         Case{program::Algorithm::double_tree, 5},
                                         Case{program::Algorithm::hierarchical, 8, 2},
                                         Case{program::Algorithm::hierarchical, 8, 4},
                                         Case{program::Algorithm::direct, 4}),
                         testing::PrintToStringParamName());

TEST(Exchange, ARingIsFourRoundsOfOneFlowEach) {
  const std::vector<Id> nodes = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto ring =
      collectives::schedule(program::Move::all_reduce, program::Algorithm::ring, 8000, nodes);
  const Exchange fluid = Exchange::joined(*ring, 4);
  ASSERT_EQ(fluid.rounds(), 4);
  std::vector<Hop> hops;
  int latencies = 0;
  for (int r = 0; r < 4; ++r) {
    fluid.round(r, -1, hops);
    ASSERT_EQ(hops.size(), 8U);
    for (const Hop& hop : hops) {
      EXPECT_DOUBLE_EQ(hop.bytes, 2 * 7.0 / 8 * 32000 / 4);
      EXPECT_EQ(hop.latencies, hops[0].latencies);
    }
    latencies += hops[0].latencies;
  }
  EXPECT_EQ(latencies, 14);
  EXPECT_DOUBLE_EQ(fluid.traffic(3), 2 * 2 * 7.0 / 8 * 32000);
}

TEST(Exchange, OfALibraryBeginsAllFlowsTogether) {
  costs::LibraryCollective run;
  run.occupancy = 2;
  run.flows = {{0, 1, 10}, {1, 2, 20}, {2, 0, 30}};
  const Exchange exchange = Exchange::of_library(run, 3);
  ASSERT_EQ(exchange.rounds(), 1);
  std::vector<Hop> hops;
  exchange.round(0, 1, hops);
  ASSERT_EQ(hops.size(), 2U);
  EXPECT_EQ(hops[0].bytes, 20);  // what occupies the links
  EXPECT_EQ(hops[1].bytes, 40);
  for (const Hop& hop : hops) EXPECT_EQ(hop.latencies, 0);  // the library has its own
  EXPECT_EQ(exchange.traffic(0), 20 + 60);
}

TEST(Exchange, SeveralIntervalsInARoundPayOneLatency) {
  // With six members, a pair exchanges more than one interval in some rounds.
  const std::vector<Id> nodes = {0, 1, 2, 3, 4, 5};
  const auto rounds = collectives::schedule(program::Move::all_gather,
                                            program::Algorithm::halving_doubling, 6000, nodes);
  const Exchange fluid = Exchange::joined(*rounds, 4);
  std::vector<Hop> hops;
  for (int r = 0; r < fluid.rounds(); ++r) {
    fluid.round(r, -1, hops);
    for (const Hop& hop : hops) EXPECT_EQ(hop.latencies, 1);
  }
}

TEST(Exchange, HierarchicalHasFewRounds) {
  std::vector<Id> nodes(48);
  for (std::size_t m = 0; m < nodes.size(); ++m) nodes[m] = static_cast<Id>(m / 16);
  const auto rounds = collectives::schedule(program::Move::all_reduce,
                                            program::Algorithm::hierarchical, 48000, nodes);
  EXPECT_EQ(rounds->rounds(), 15 + 4 + 15);
  // Three phases, each divided into at most four rounds.
  EXPECT_LE(Exchange::joined(*rounds, 4).rounds(), 12);
}

}  // namespace
}  // namespace rehearse::sim
