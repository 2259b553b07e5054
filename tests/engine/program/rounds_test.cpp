// When a rank gives up a round, on a clock that the test reads.
#include "engine/program/rounds.h"

#include <gtest/gtest.h>

namespace rehearse::program {
namespace {

constexpr Round of_four{.steps = 4, .deadline = 1};
const Op pass{.work = Compute{}};

bool works(RoundClock& clock, std::int64_t step, double at) {
  return clock.works(of_four, pass, step, [&] { return at; });
}

TEST(RoundClock, DecidesWithTheFirstOpOfAStep) {
  RoundClock clock;
  EXPECT_TRUE(works(clock, 0, 100));
  EXPECT_TRUE(works(clock, 1, 101));  // exactly at the deadline
  EXPECT_TRUE(works(clock, 1, 105));  // the step has begun in time
  EXPECT_FALSE(works(clock, 2, 105));
  EXPECT_FALSE(works(clock, 3, 105));
  EXPECT_TRUE(clock.late(of_four, 105));
  EXPECT_TRUE(works(clock, 4, 106));  // the next round
  EXPECT_FALSE(clock.late(of_four, 107));
  EXPECT_TRUE(clock.late(of_four, 107.5));
}

TEST(RoundClock, WhatOthersWaitForAlwaysWorks) {
  RoundClock clock;
  EXPECT_TRUE(works(clock, 0, 0));
  EXPECT_FALSE(works(clock, 1, 9));
  const auto at_end = [&](const Work& work) {
    return clock.works(of_four, {.work = work, .when = {.every = 4}}, 3, [] { return 9.0; });
  };
  EXPECT_TRUE(at_end(Kernel{.kind = KernelKind::in_time}));
  EXPECT_TRUE(at_end(Collective{}));
  // The host issues nothing for what is left of the round, and goes on with the next one.
  const auto issues = [&](std::int64_t step) {
    return clock.works(of_four, {.work = Issue{}}, step, [] { return 9.0; });
  };
  EXPECT_FALSE(issues(3));
  EXPECT_TRUE(issues(4));
}

TEST(RoundClock, ARunThatGoesOnHasTheWholeTimeAndPausesDoNotCount) {
  RoundClock clock;
  clock.go_on(50);
  EXPECT_TRUE(works(clock, 2, 60));
  clock.pause(60.5);
  clock.go_on(90);
  EXPECT_FALSE(clock.late(of_four, 90.5));
  EXPECT_TRUE(works(clock, 3, 90.5));
  EXPECT_TRUE(clock.late(of_four, 90.6));
}

}  // namespace
}  // namespace rehearse::program
