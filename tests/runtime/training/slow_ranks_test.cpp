// Which rank is slow, by the seconds that ranks compute.
#include "runtime/training/slow_ranks.h"

#include <gtest/gtest.h>

#include <functional>

namespace rehearse::runtime {
namespace {

/// Feeds windows; `of`: seconds of a step of a rank in a window. Returns the window and the rank
/// that was found slow first.
std::optional<std::pair<int, SlowRank>> run(SlowRanks& slow, Id ranks, int windows,
                                            const std::function<double(Id, int)>& of) {
  std::vector<double> total(ranks);
  for (int w = 0; w < windows; ++w)
    for (int step = 0; step < SlowRanks::window; ++step)
      for (Id rank = 0; rank < ranks; ++rank) {
        total[rank] += of(rank, w);
        if (const auto found = slow.add(rank, total[rank])) return std::pair{w, *found};
      }
  return std::nullopt;
}

TEST(SlowRanks, OneOfManyAlikeIsFoundInTheSecondWindow) {
  SlowRanks slow({0, 0, 0, 0}, 3);
  const auto found = run(
      slow, 4, 9, [](Id rank, int w) { return (rank == 2 && w >= 4 ? 4 : 1) * (1 + 0.1 * rank); });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->first, 5);
  EXPECT_EQ(found->second.rank, 2);
  EXPECT_NEAR(found->second.factor, 4.0 * 1.2 / 1.1, 0.3);
}

TEST(SlowRanks, ASlowWindowAloneIsNothing) {
  SlowRanks slow({0, 0, 0, 0}, 3);
  EXPECT_FALSE(run(slow, 4, 12, [](Id rank, int w) { return rank == 1 && w % 2 == 0 ? 9.0 : 1; }));
}

TEST(SlowRanks, AllRanksThatBecomeSlowAreNothing) {
  SlowRanks alike({0, 0, 0}, 2), stages({0, 1}, 2);
  const auto all = [](Id, int w) { return w < 4 ? 1.0 : 7.0; };
  EXPECT_FALSE(run(alike, 3, 9, all));
  EXPECT_FALSE(run(stages, 2, 9, all));
}

TEST(SlowRanks, RanksThatScatterAreNothing) {
  // The median is 7, the deviation 1.4826 x 3: 13 is 1.86 times the median 7, but not far away.
  SlowRanks slow({0, 0, 0, 0, 0}, 1.6);
  EXPECT_FALSE(run(slow, 5, 9, [](Id rank, int) { return 1.0 + 3 * rank; }));
}

TEST(SlowRanks, StagesAreComparedWithThemselves) {
  // Stage 1 has ten times the work of stage 0 from the beginning.
  SlowRanks slow({0, 1}, 3);
  const auto found =
      run(slow, 2, 9, [](Id rank, int w) { return rank == 0 ? (w >= 5 ? 6.0 : 1) : 10.0; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->second.rank, 0);
  EXPECT_EQ(found->first, 6);
  EXPECT_NEAR(found->second.factor, 6, 0.1);
}

}  // namespace
}  // namespace rehearse::runtime
