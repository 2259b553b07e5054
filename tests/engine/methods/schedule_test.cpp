// Two parts of Sun 2026: eq. 7 as printed always picks the fewest micro-batches, which is why the
// planner does not use it. Shares of samples by speed, which the planner does use.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "engine/planner/placement/shares.h"
#include "tests/engine/rig.h"

namespace rehearse::methods {
namespace {

constexpr std::array eq7_choices{2, 4, 8, 16};

/// The objective of eq. 7, seconds. `step`: of forward and backward of one micro-batch; `transfer`:
/// between two stages.
double eq7_seconds(int micro_batches, int stages, int layers, double step, double transfer) {
  return static_cast<double>(stages) / layers * micro_batches * step +
         (micro_batches - 1) * transfer;
}

/// M* of eq. 7 among the choices that fit into memory. Of equal ones, the smaller.
std::optional<int> eq7_micro_batches(
    int stages, int layers, double step, double transfer,
    const std::function<bool(int)>& fits = [](int) { return true; }) {
  std::optional<int> best;
  for (const int m : eq7_choices)
    if (fits(m) && (!best || eq7_seconds(m, stages, layers, step, transfer) <
                                 eq7_seconds(*best, stages, layers, step, transfer)))
      best = m;
  return best;
}

/// Seconds of a flushed pipeline of G equal stages: M + G - 1 turns (forward and backward of one
/// micro-batch), and 2 (G - 1) transfers.
double flushed_seconds(int micro_batches, int stages, double turn, double transfer) {
  return (micro_batches + stages - 1) * turn + 2 * (stages - 1) * transfer;
}

TEST(Eq7, HandWorkedValues) {
  // G 4, L 12, T_step 0.3 s, T_comm 0.01 s: G/L T_step = 0.1.
  EXPECT_NEAR(eq7_seconds(2, 4, 12, 0.3, 0.01), 2 * 0.1 + 1 * 0.01, 1e-15);
  EXPECT_NEAR(eq7_seconds(4, 4, 12, 0.3, 0.01), 4 * 0.1 + 3 * 0.01, 1e-15);
  EXPECT_NEAR(eq7_seconds(8, 4, 12, 0.3, 0.01), 8 * 0.1 + 7 * 0.01, 1e-15);
  EXPECT_NEAR(eq7_seconds(16, 4, 12, 0.3, 0.01), 16 * 0.1 + 15 * 0.01, 1e-15);
}

TEST(Eq7, AsPrintedAlwaysPicksTwo) {
  for (const int stages : {1, 2, 4, 8, 32})
    for (const int layers : {2, 12, 96})
      for (const double step : {0.0, 1e-6, 0.02, 3.0})
        for (const double transfer : {0.0, 1e-6, 0.5}) {
          for (std::size_t i = 1; i < eq7_choices.size(); ++i)
            EXPECT_LE(eq7_seconds(eq7_choices[i - 1], stages, layers, step, transfer),
                      eq7_seconds(eq7_choices[i], stages, layers, step, transfer));
          EXPECT_EQ(eq7_micro_batches(stages, layers, step, transfer), 2);
        }
}

TEST(Eq7, MemoryLeavesTheSmallestThatFits) {
  EXPECT_EQ(eq7_micro_batches(4, 12, 0.3, 0.01, [](int m) { return m >= 8; }), 8);
  EXPECT_EQ(eq7_micro_batches(4, 12, 0.3, 0.01, [](int) { return false; }), std::nullopt);
}

TEST(Eq7, AFlushedPipelineWantsMore) {
  // The same batch in M micro-batches on 4 stages, 0.4 s of work per stage: (M + 3) x 0.4 / M.
  EXPECT_NEAR(flushed_seconds(2, 4, 0.4 / 2, 0), 5 * 0.2, 1e-15);
  EXPECT_NEAR(flushed_seconds(16, 4, 0.4 / 16, 0), 19 * 0.025, 1e-15);
  EXPECT_LT(flushed_seconds(16, 4, 0.4 / 16, 0.001), flushed_seconds(2, 4, 0.4 / 2, 0.001));
}

TEST(Shares, FollowSpeed) {
  // 12 samples at 1, 1 and 2 s each: shares 5, 5, 2 end after 5, 5, 4 s; shares 4, 5, 3 after 6 s.
  EXPECT_EQ(planner::shares_of(std::vector<double>{1, 1, 2}, 12), (std::vector<int>{5, 5, 2}));
  EXPECT_EQ(planner::shares_of(std::vector<double>{1, 1}, 6), (std::vector<int>{3, 3}));
  // Every rank gets at least one sample, however slow it is.
  EXPECT_EQ(planner::shares_of(std::vector<double>{1, 100}, 4), (std::vector<int>{3, 1}));
}

TEST(Shares, NoOtherSplitEndsEarlier) {
  const std::vector<double> seconds{1.0, 1.7, 0.6};
  for (int total = 3; total <= 24; ++total) {
    const auto end = [&](const std::vector<int>& shares) {
      double last = 0;
      for (std::size_t i = 0; i < shares.size(); ++i) last = std::max(last, shares[i] * seconds[i]);
      return last;
    };
    double best = 1e9;
    for (int a = 1; a < total; ++a)
      for (int b = 1; a + b < total; ++b) best = std::min(best, end({a, b, total - a - b}));
    EXPECT_DOUBLE_EQ(end(planner::shares_of(seconds, total)), best) << total;
  }
}

/// Where a pass takes as long for any number of samples, shares in proportion gain nothing.
TEST(Shares, BySpeedStayEqualWhereThatIsAsFast) {
  job::Job job;
  job.model = test::small_model(2);
  job.cluster = test::fast(2);
  job.plan = test::plan_of("ddp", 1, 2, 1, 1);
  job.plan.schedule.global_batch = 8;
  job.plan = prepare(job.plan, job.model);
  job.shares = job::Shares::speed;
  job.disturb.stragglers.push_back({.rank = 0, .factor = 2});
  EXPECT_TRUE(planner::with_shares(std::move(job), nullptr).plan.schedule.shares.empty());
}

TEST(Shares, RefinedOnesEndAsEarlyAsAnyNearby) {
  // Products take whole tiles of samples.
  const auto seconds = [](std::size_t replica, int samples) {
    const int tiles = replica == 0 ? (samples + 7) / 8 : (samples + 2) / 3;
    return replica == 0 ? 1.0 * tiles : 0.9 * tiles;
  };
  for (int total = 2; total <= 40; ++total)
    for (int first = 1; first < total; ++first) {
      const std::vector<int> shares{first, total - first};
      const auto end = [&](int a) { return std::max(seconds(0, a), seconds(1, total - a)); };
      const std::vector<int> found = planner::refined(shares, seconds);
      double best = 1e9;
      for (int a = std::max(1, first - 4); total - a >= std::max(1, total - first - 4); ++a)
        if (a < total) best = std::min(best, end(a));
      EXPECT_EQ(found[0] + found[1], total);
      EXPECT_EQ(end(found[0]), best) << first << " of " << total;
    }
}

}  // namespace
}  // namespace rehearse::methods
