// Medians of few values, worked out by hand.
#include "engine/base/numbers/median.h"

#include <gtest/gtest.h>

namespace rehearse {
namespace {

TEST(Median, AndItsDeviation) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(lower_median({3, 1, 2}), 2);
  EXPECT_EQ(lower_median({4, 1, 2, 3}), 2);
  // 1 1 2 2 4 6 9: the median is 2, the distances 1 1 0 0 2 4 7, their median 1.
  EXPECT_EQ(median_deviation({1, 1, 2, 2, 4, 6, 9}), 1);
}

}  // namespace
}  // namespace rehearse
