// Rings on a torus: every member gets the sum of all members, reduce-scatter leaves part i at
// member i, transfers go to neighbours alone, and on a cube every cable carries as much in every
// round.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "engine/collectives/schedule.h"
#include "tests/engine/collectives/play.h"

namespace rehearse::collectives {
namespace {

using program::Move;

const std::vector<std::vector<int>> shapes = {{2},    {5},       {4, 2},   {3, 3},
                                              {1, 4}, {2, 3, 2}, {3, 4, 2}};

int members_of(const std::vector<int>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies<>());
}
std::multiset<int> everyone(int n) {
  std::multiset<int> out;
  for (int i = 0; i < n; ++i) out.insert(i);
  return out;
}

TEST(TorusRings, SumEveryElementOnceAtEveryMember) {
  for (const auto& sizes : shapes) {
    const int n = members_of(sizes);
    const std::int64_t elements = 11 * n + 5;
    const auto plan = torus_rings(Move::all_reduce, sizes, elements);
    ASSERT_EQ(plan->members(), n);
    for (const auto& member : play(*plan, elements, false))
      for (const auto& cell : member) ASSERT_EQ(cell, everyone(n));
  }
}

TEST(TorusRings, LeavePartIAtMemberIAndGatherItEverywhere) {
  for (const auto& sizes : shapes) {
    const int n = members_of(sizes);
    const std::int64_t elements = 13 * n + 1;
    const auto summed = play(*torus_rings(Move::reduce_scatter, sizes, elements), elements, false);
    const auto gathered = play(*torus_rings(Move::all_gather, sizes, elements), elements, true);
    for (int owner = 0; owner < n; ++owner)
      for (auto e = static_cast<std::size_t>(owner * elements / n);
           e < static_cast<std::size_t>((owner + 1) * elements / n); ++e) {
        ASSERT_EQ(summed[static_cast<std::size_t>(owner)][e], everyone(n));
        for (const auto& member : gathered) ASSERT_EQ(member[e], std::multiset<int>{owner});
      }
  }
}

TEST(TorusRings, SendAsMuchAsOneRing) {
  for (const auto& sizes : shapes) {
    const int n = members_of(sizes);
    const std::int64_t elements = std::int64_t{24 * 4096} * n;
    const std::vector<Id> nodes(static_cast<std::size_t>(n), 0);
    for (const Move move : {Move::all_reduce, Move::reduce_scatter, Move::all_gather}) {
      const auto plan = torus_rings(move, sizes, elements);
      const auto ring = schedule(move, program::Algorithm::ring, elements, nodes);
      for (int m = 0; m < n; ++m) EXPECT_NEAR(plan->sent(m), ring->sent(m), 1e-4 * ring->sent(m));
    }
  }
}

TEST(TorusRings, OnACubeEveryCableCarriesAsMuchInEveryRound) {
  const std::int64_t elements = 6 * 64 * 64;
  const auto plan = torus_rings(Move::all_reduce, {4, 4, 4}, elements);
  EXPECT_EQ(plan->rounds(), 2 * 9);
  for (int r = 0; r < plan->rounds(); ++r) {
    std::vector<Transfer> all, mine;
    plan->round(r, -1, all);
    std::map<std::pair<int, int>, std::int64_t> cables;
    for (const Transfer& t : all) cables[{t.from, t.to}] += t.end - t.begin;
    EXPECT_EQ(cables.size(), 64U * 6);
    for (const auto& [pair, sent] : cables) EXPECT_EQ(sent, cables.begin()->second);
    for (int m = 0; m < 64; ++m) plan->round(r, m, mine);
    EXPECT_EQ(mine.size(), 2 * all.size());
  }
}

TEST(TorusRings, AlikeRoundsMoveTheSameAmountsOverTheSamePairs) {
  for (const Move move : {Move::all_reduce, Move::reduce_scatter, Move::all_gather}) {
    const auto plan = torus_rings(move, {3, 4, 2}, std::int64_t{24 * 24 * 24 * 6});
    const auto amounts = [&](int r) {
      std::vector<Transfer> all;
      plan->round(r, -1, all);
      std::map<std::pair<int, int>, std::int64_t> out;
      for (const Transfer& t : all) out[{t.from, t.to}] += t.end - t.begin;
      return out;
    };
    int next = 0;
    for (const Schedule::Repeat repeat : plan->distinct()) {
      ASSERT_EQ(repeat.round, next);
      for (int k = 1; k < repeat.times; ++k) EXPECT_EQ(amounts(next + k), amounts(next));
      next += repeat.times;
    }
    EXPECT_EQ(next, plan->rounds());
  }
}

}  // namespace
}  // namespace rehearse::collectives
