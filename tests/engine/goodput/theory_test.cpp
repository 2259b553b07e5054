// The walk against closed forms: the ratio of Kokolis et al., and Young's best interval.
#include "engine/goodput/theory.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/faults/draw.h"
#include "engine/goodput/summary.h"

namespace rehearse::goodput {
namespace {

constexpr double day = 86400;
constexpr Ticks second = 1'000'000'000;

/// 1,024 nodes for 54 days with exponential failures, restarts of `restart` and writes of `write`.
Setting thousand(double step, double write, double restart) {
  Setting s;
  s.duration = static_cast<Ticks>(54 * day) * second;
  s.step = ticks(Seconds(step));
  s.ranks_of_slot.assign(1024, 1);
  s.replicas_of_slot.assign(1024, {0});
  s.ranks_of_replica = 1024;
  s.step_with = [step = s.step](int) { return step; };
  s.checkpoint.stall = ticks(Seconds(write));
  s.detection = 0;
  s.restart = ticks(Seconds(restart));
  return s;
}

Failures exponential(double rate, int seeds, faults::Kind kind = faults::Kind::rank_dies) {
  faults::FailureModel model{.name = "m"};
  model.causes.push_back({.name = "c", .kind = kind, .rate = rate});
  const faults::Drawer draw(model, 1024);
  Slots slots;
  for (Id n = 0; n < 1024; ++n) slots.of_node[n] = n;
  Failures out;
  for (int i = 1; i <= seeds; ++i)
    out.push_back(incidents_of(draw(Seconds(54 * day), static_cast<std::uint64_t>(i)), slots,
                               second, [](const faults::Event&) { return 1.0; })
                      .all);
  return out;
}

const Policy& restart() { return policy_named(job::RecoveryPolicy::restart); }

TEST(Theory, FormulasOfThePapers) {
  EXPECT_DOUBLE_EQ(young(Seconds(20), Seconds(10'000)).value, std::sqrt(400'000));
  EXPECT_DOUBLE_EQ(daly(Seconds(20), Seconds(10'000)).value, std::sqrt(400'000) - 20);
  EXPECT_EQ(daly(Seconds(100), Seconds(10)).value, 0);
  EXPECT_DOUBLE_EQ(expected_ratio(Seconds(1000), Seconds(10), Seconds(10'000), Seconds(500)),
                   0.9 / 1.01);
  EXPECT_EQ(expected_ratio(Seconds(1000), Seconds(10), Seconds(100), Seconds(500)), 0);
}

TEST(Theory, FailuresThatDestroyCheckpointsPutMoreIntervalsAtRisk) {
  EXPECT_DOUBLE_EQ(young(Seconds(20), Seconds(10'000), 4).value, std::sqrt(100'000));
  EXPECT_DOUBLE_EQ(daly(Seconds(20), Seconds(10'000), 4).value, std::sqrt(100'000) - 20);
  EXPECT_DOUBLE_EQ(expected_ratio(Seconds(1000), Seconds(10), Seconds(10'000), Seconds(500), 4),
                   0.75 / 1.01);
}

TEST(Theory, RestartTimesAreThoseOfFtHsdp) {
  for (const auto& [ranks, time] :
       {std::pair(1, 60.0), {16384, 200.0}, {22000, 300.0}, {64000, 600.0}, {98000, 900.0}})
    EXPECT_NEAR(restart_time(ranks).value, time, 1e-9) << ranks;
  EXPECT_GT(restart_time(131072).value, 1100);
}

TEST(Theory, TheWalkHasTheExpectedRatio) {
  // Failures every 4 h; the closed form leaves out that a failure can strike a recovery.
  const Failures failures = exponential(24 / 4.0 / 1.024, 40);
  const double between = between_incidents(failures, thousand(1, 1, 1)).value;
  EXPECT_NEAR(between, 4 * 3600, 400);
  for (const double interval : {300.0, 900.0, 2700.0}) {
    Setting s = thousand(5, 20, 600);
    s.save_every = static_cast<std::int64_t>(interval / 5);
    const double walked = walk_all(s, restart(), failures).goodput.mean;
    const double formula =
        expected_ratio(Seconds(interval), Seconds(20), Seconds(between), Seconds(600));
    // The formula leaves out terms of the second order of interval / between.
    EXPECT_NEAR(walked, formula, 0.003 + std::pow(interval / between, 2) / 4) << interval;
  }
}

TEST(Theory, TheWalkHasTheExpectedRatioWhereNodesTakeCheckpointsWithThem) {
  // Every failure destroys what nodes hold; each fifth checkpoint is on the shared disk.
  const Failures failures = exponential(24 / 12.0 / 1.024, 60, faults::Kind::node_dies);
  Setting s = thousand(5, 20, 600);
  s.spares = 1 << 16;
  s.checkpoint.local = true;
  s.checkpoint.group = 1;
  s.checkpoint.whole_every = 5;
  const double between = between_incidents(failures, s).value;
  for (const double interval : {300.0, 900.0}) {
    s.save_every = static_cast<std::int64_t>(interval / 5);
    const Summary walked = walk_all(s, restart(), failures);
    EXPECT_GT(walked.destroyed, 0.9 * walked.interruptions) << "all but those before the first";
    EXPECT_GT(walked.reads, 0.97 * walked.interruptions) << "all but those in a recovery";
    const double formula =
        expected_ratio(Seconds(interval), Seconds(20), Seconds(between), Seconds(600), 5);
    EXPECT_NEAR(walked.goodput.mean, formula, 0.003 + std::pow(5 * interval / between, 2) / 4)
        << interval;
  }
}

TEST(Theory, YoungsIntervalIsTheBestWithinItsSecondOrderError) {
  // Young leaves out terms of relative size sqrt(w / 2M).
  for (const double write : {5.0, 20.0, 80.0}) {
    const Failures failures = exponential(24 / 3.0 / 1.024, 60);
    Setting s = thousand(1, write, 300);
    const auto scores = score_intervals(s, restart(), failures);
    const double between = between_incidents(failures, s).value;
    const double expected = young(Seconds(write), Seconds(between)).value;
    const double order = std::sqrt(write / (2 * between));
    s.save_every = std::llround(expected);
    const double at_young = walk_all(s, restart(), failures).goodput.mean;
    // The optimum is flat: goodput there differs from the best by its second order.
    EXPECT_NEAR(at_young, best(scores).goodput, 2 * order * order + 0.0005) << write;
    EXPECT_NEAR(static_cast<double>(best(scores).save_every) / expected, 1, 0.35) << write;
    // Far from it goodput falls on both sides.
    EXPECT_LT(scores.front().goodput, best(scores).goodput - order / 4) << write;
    EXPECT_LT(scores.back().goodput, best(scores).goodput - order / 4) << write;
  }
}

TEST(Theory, NothingFailsAndNothingIsSearched) {
  Setting s = thousand(1, 10, 100);
  EXPECT_TRUE(score_intervals(s, restart(), {{}}).empty());
  EXPECT_EQ(between_incidents({{}}, s).value, 0);
  // Nor is a stall a failure that is over before the run notices.
  s.detection = ticks(Seconds(600));
  Incident stall{.at = ticks(Seconds(100)), .strike = Strike::stalls, .slots = {0}, .lasts = 1};
  EXPECT_EQ(between_incidents({{stall}}, s).value, 0);
  stall.lasts = *s.detection;
  EXPECT_EQ(between_incidents({{stall}}, s).value, seconds(s.duration).value);
  EXPECT_DOUBLE_EQ(walk_all(s, restart(), {{}}).goodput.mean, 1);
}

}  // namespace
}  // namespace rehearse::goodput
