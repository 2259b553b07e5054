// Several rings: every member gets the sum of all members, reduce-scatter leaves part i at member
// i, and each member sends as much as on a single ring.
#include <gtest/gtest.h>

#include <set>

#include "engine/collectives/schedule.h"
#include "tests/engine/collectives/play.h"

namespace rehearse::collectives {
namespace {

using Rings = std::vector<std::vector<int>>;

const std::multiset<int> everyone = {0, 1, 2, 3};
const Rings both = {{0, 1, 2, 3}, {0, 3, 1, 2}};
constexpr std::int64_t elements = 37;  // no multiple of parts or rings

TEST(SeveralRings, SumEveryElementOnceAtEveryMember) {
  const auto plan = several_rings(program::Move::all_reduce, both, elements);
  EXPECT_EQ(plan->rounds(), 6);
  for (const auto& member : play(*plan, elements, false))
    for (const auto& cell : member) EXPECT_EQ(cell, everyone);
}

TEST(SeveralRings, LeavePartIAtMemberI) {
  const auto state =
      play(*several_rings(program::Move::reduce_scatter, both, elements), elements, false);
  for (std::size_t m = 0; m < 4; ++m)
    for (std::size_t e = m * 37 / 4; e < (m + 1) * 37 / 4; ++e) EXPECT_EQ(state[m][e], everyone);
}

TEST(SeveralRings, GatherEveryPartEverywhere) {
  const auto state =
      play(*several_rings(program::Move::all_gather, both, elements), elements, true);
  for (const auto& member : state)
    for (std::size_t e = 0; e < member.size(); ++e) {
      ASSERT_EQ(member[e].size(), 1U);
      const auto owner = static_cast<std::size_t>(*member[e].begin());
      EXPECT_TRUE(e >= owner * 37 / 4 && e < (owner + 1) * 37 / 4);
    }
}

TEST(SeveralRings, SendAsMuchAsOneRing) {
  for (const auto move : {program::Move::all_reduce, program::Move::reduce_scatter}) {
    const auto one = several_rings(move, {{0, 1, 2, 3}}, 4096);
    const auto two = several_rings(move, both, 4096);
    const auto plain = schedule(move, program::Algorithm::ring, 4096, std::vector<Id>(4, 0));
    for (int m = 0; m < 4; ++m) {
      EXPECT_EQ(two->sent(m), plain->sent(m));
      EXPECT_EQ(one->sent(m), plain->sent(m));
    }
  }
}

TEST(SeveralRings, AMembersRoundIsItsPartOfTheRound) {
  const auto plan = several_rings(program::Move::all_reduce, both, elements);
  for (int r = 0; r < plan->rounds(); ++r) {
    std::vector<Transfer> all, mine;
    plan->round(r, -1, all);
    for (int m = 0; m < 4; ++m) plan->round(r, m, mine);
    EXPECT_EQ(mine.size(), 2 * all.size());
  }
}

}  // namespace
}  // namespace rehearse::collectives
