// Tests when a run changes its plan: the policies against values worked out by hand.
#include "engine/planner/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>

#include "engine/planner/placement/shares.h"

namespace rehearse::planner {
namespace {

TEST(ReplaceOnce, IsDueExactlyOnceAfterWarmUp) {
  const plan::Plan to{.method = "1f1b", .mesh = {.pp = 2}};
  ReplaceOnce policy(50, [&](const Measured& measured, const plan::Plan& current) {
    EXPECT_EQ(measured.step, 50);
    EXPECT_EQ(current.method, "ddp");
    return to;
  });
  EXPECT_EQ(policy.next(0, 0), 50);
  EXPECT_EQ(policy.next(50, 0), 50);
  EXPECT_EQ(policy.next(70, 0), 70);  // resumed from a run that changed no plan
  EXPECT_EQ(policy.next(51, 1), std::nullopt);
  EXPECT_EQ(policy.next(0, 1), std::nullopt);
  const auto plan = policy.observe({.step = 50}, {.method = "ddp"});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->method, "1f1b");
}

double last_end(const std::vector<double>& seconds, const std::vector<int>& shares) {
  double last = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) last = std::max(last, seconds[i] * shares[i]);
  return last;
}

TEST(BalancedShares, EndTogetherAsFarAsWholeSamplesCan) {
  using Shares = std::vector<int>;
  const auto shares = [](const std::vector<double>& seconds, int samples) {
    return shares_of(seconds, samples);
  };
  EXPECT_EQ(shares({1, 1}, 8), (Shares{4, 4}));
  EXPECT_EQ(shares({1, 3}, 8), (Shares{6, 2}));         // 6 x 1 = 2 x 3
  EXPECT_EQ(shares({2, 1, 1}, 10), (Shares{2, 4, 4}));  // 4 = 4 = 4
  EXPECT_EQ(shares({1, 100}, 8), (Shares{7, 1}));       // at least one sample each
  EXPECT_EQ(shares({1}, 5), (Shares{5}));
}

TEST(BalancedShares, AreOptimal) {
  const std::vector<std::vector<double>> cases = {
      {1, 1.4, 2.2}, {3, 1, 1.7}, {0.2, 5, 1}, {1, 1, 1.01}};
  for (const auto& seconds : cases)
    for (int samples = 3; samples <= 17; ++samples) {
      const std::vector<int> found = shares_of(seconds, samples);
      EXPECT_EQ(std::accumulate(found.begin(), found.end(), 0), samples);
      double best = 1e9;
      for (int a = 1; a < samples - 1; ++a)
        for (int b = 1; a + b < samples; ++b)
          best = std::min(best, last_end(seconds, {a, b, samples - a - b}));
      EXPECT_EQ(last_end(seconds, found), best) << samples;
    }
}

TEST(BalanceLoad, MovesSamplesWhenTheImbalanceIsWorthIt) {
  BalanceLoad policy(10, 0.1);
  EXPECT_EQ(policy.next(0, 0), 10);
  EXPECT_EQ(policy.next(10, 3), 10);
  EXPECT_EQ(policy.next(11, 0), 20);
  plan::Plan plan{.method = "ddp", .mesh = {.dp = 2}, .schedule = {.global_batch = 8}};
  // Four samples each; rank 1 takes three times as long per sample: 6 x 0.1 = 2 x 0.3 s.
  auto next = policy.observe({.step = 10, .busy = {0.4, 1.2}}, plan);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->schedule.shares, (std::vector<int>{6, 2}));
  // Now both are busy for 0.6 s: there is nothing to gain.
  EXPECT_FALSE(policy.observe({.step = 20, .busy = {0.6, 0.6}}, *next).has_value());
  // Rank 1 becomes as fast as rank 0 again: equal shares are an empty list.
  next = policy.observe({.step = 30, .busy = {0.6, 0.2}}, *next);
  ASSERT_TRUE(next.has_value());
  EXPECT_TRUE(next->schedule.shares.empty());
  // Below the bound the plan stays: 0.44 -> 0.4 would be 9% less.
  EXPECT_FALSE(policy.observe({.step = 10, .busy = {0.36, 0.44}}, plan).has_value());
  EXPECT_FALSE(policy.observe({.step = 10, .busy = {}}, plan).has_value());
  // The slowest rank of a replica counts: ranks 0 and 1 are one replica of two stages.
  plan::Plan deep{.method = "1f1b",
                  .mesh = {.pp = 2, .dp = 2, .order = "dp,pp,tp"},
                  .schedule = {.global_batch = 16, .micro_batches = 2}};
  next = policy.observe({.step = 10, .busy = {0.4, 1.2, 0.4, 0.4}}, deep);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->schedule.shares, (std::vector<int>{2, 6}));
}

TEST(Policies, AskWhoIsDue) {
  std::vector<std::string> asked;
  const auto once = [&](std::int64_t step, const char* name) {
    return std::make_shared<ReplaceOnce>(step,
                                         [&asked, name](const Measured&, const plan::Plan& plan) {
                                           asked.emplace_back(name);
                                           return plan;
                                         });
  };
  Policies policies({once(50, "re-placement"), std::make_shared<BalanceLoad>(20, 0.1)});
  EXPECT_EQ(policies.next(1, 0), 20);
  EXPECT_EQ(policies.next(41, 0), 50);
  EXPECT_EQ(policies.next(41, 1), 60);
  const plan::Plan plan{.method = "ddp", .mesh = {.dp = 2}, .schedule = {.global_batch = 8}};
  EXPECT_FALSE(policies.observe({.step = 40, .busy = {1, 1}}, plan).has_value());
  EXPECT_TRUE(asked.empty());
  EXPECT_TRUE(policies.observe({.step = 50, .busy = {1, 1}}, plan).has_value());
  EXPECT_EQ(asked, (std::vector<std::string>{"re-placement"}));
  EXPECT_TRUE(policies.observe({.step = 60, .placements = 1, .busy = {1, 3}}, plan).has_value());
}

}  // namespace
}  // namespace rehearse::planner
