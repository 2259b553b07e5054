// Runs with random steps stop when the mean step time is precise enough.
#include "engine/execution/measure/stopping.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/execution/measure/metrics.h"
#include "tests/engine/rig.h"

namespace rehearse::execution {
namespace {

TEST(HalfWidth, NeedsWholeBatches) {
  for (const std::size_t n : {0, 2, 4, 5, 7, 9, 22, 42})
    EXPECT_TRUE(std::isinf(half_width95(std::vector<double>(n, 1.0)))) << n;
  for (const std::size_t n : {6, 8, 10, 20, 24, 40, 48})
    EXPECT_NEAR(half_width95(std::vector<double>(n, 1.0)), 0, 1e-12) << n;
}

TEST(HalfWidth, IsThatOfTheMeansOfBatches) {
  // The means are 1, 2 and 3; Student's quantile for two degrees of freedom is 4.3027.
  EXPECT_NEAR(half_width95(std::vector<double>{1, 1, 1, 3, 4, 2}), 4.302653 / std::sqrt(3.0), 1e-5);
}

TEST(HalfWidth, IgnoresAlternationAndSeesADrift) {
  std::vector<double> alternates, drifts;
  for (int i = 0; i < 20; ++i) alternates.push_back(1 + i % 2), drifts.push_back(1 + 0.05 * i);
  EXPECT_NEAR(half_width95(alternates), 0, 1e-12);
  EXPECT_GT(half_width95(drifts), 0.1);
}

TEST(HalfWidth, HoldsTheMeanOfCorrelatedSteps) {
  // Each step is delayed by a part of the previous step's delay. The mean is 1.
  int held = 0;
  constexpr int rounds = 400;
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 random(static_cast<unsigned>(round));
    std::normal_distribution<double> normal(0, 0.05);
    std::vector<double> times;
    double delay = 0, sum = 0;
    for (int i = 0; i < 48; ++i) {
      delay = 0.4 * delay + normal(random);
      times.push_back(1 + delay), sum += times.back();
    }
    held += std::abs(sum / 48 - 1) <= half_width95(times);
  }
  EXPECT_GT(held, 0.92 * rounds);
}

class Precision : public testing::Test {
 protected:
  Metrics run(double precision, double sigma = 0.2) const {
    cluster::Disturbance d;
    d.compute_sigma = d.link_sigma = sigma;
    return rig_.metrics({5, 50}, d, 1, {.precision = precision});
  }
  test::Rig rig_ = test::Rig(test::plan_of("ddp", 1, 4, 1, 1), test::small_model(4),
                             test::star(4, BytesPerSecond(3e8), Seconds(2e-6)));
};

TEST_F(Precision, ALooserOneTakesFewerSteps) {
  const Metrics full = run(0);
  EXPECT_EQ(full.steps_run, 55);
  int most = 55;
  for (const double precision : {1e-9, 0.02, 1.0}) {
    const Metrics m = run(precision);
    EXPECT_LE(m.steps_run, most);
    most = m.steps_run;
    // The steps that were run are those of the full run.
    ASSERT_EQ(m.step_times.size(), static_cast<std::size_t>(m.steps_run - 5));
    for (std::size_t i = 0; i < m.step_times.size(); ++i)
      EXPECT_EQ(m.step_times[i], full.step_times[i]);
    if (m.steps_run < 55) {
      EXPECT_LE(half_width95(m.step_times), precision * m.mean_step);
    }
    EXPECT_EQ(m.period, 0);
  }
  EXPECT_EQ(most, 11);
}

TEST_F(Precision, OfStepsThatDifferMoreTakesMoreSteps) {
  EXPECT_LT(run(0.01, 0.01).steps_run, run(0.01, 0.5).steps_run);
}

}  // namespace
}  // namespace rehearse::execution
