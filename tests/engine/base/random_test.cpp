// Random draws depend on their key only, and have the stated distribution. Also tests Disturber.
#include "engine/base/numbers/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "engine/base/errors.h"
#include "engine/cluster/disturbance.h"

namespace rehearse {
namespace {

TEST(Random, EveryPartOfTheKeyMatters) {
  std::set<std::uint32_t> seen;
  int draws = 0;
  for (std::uint64_t seed : {0, 1, 2})
    for (Draw what : {Draw::compute, Draw::link})
      for (std::uint64_t step : {0, 1, 2, 3})
        for (std::uint64_t op : {0, 1, 2, 3})
          for (std::uint32_t rank = 0; rank < 64; ++rank, ++draws)
            seen.insert(random_bits(random_key(seed, what, step, op), rank));
  // 6,144 draws of 2^32 collide 0.004 times on average.
  EXPECT_GE(seen.size(), static_cast<std::size_t>(draws - 1));
}

TEST(Random, UniformInRankStepAndOp) {
  // Chi-square test over 256 cells, varying the rank, the step or the op. The 99.99% quantile with
  // 255 degrees of freedom is 351.
  const int n = 1 << 16;
  for (int way = 0; way < 3; ++way) {
    std::vector<double> cells(256, 0);
    for (std::uint32_t i = 0; i < n; ++i) {
      const RandomKey key = random_key(7, Draw::compute, way == 1 ? i : 3, way == 2 ? i : 5);
      ++cells[random_bits(key, way == 0 ? i : 11) >> 24];
    }
    double chi2 = 0;
    for (double c : cells) chi2 += (c - n / 256.0) * (c - n / 256.0) / (n / 256.0);
    EXPECT_LT(chi2, 351) << way;
    EXPECT_GT(chi2, 175) << way;  // nor too uniform
  }
}

TEST(Random, LogNormalHasMeanOneAndItsSigma) {
  for (double sigma : {0.0, 0.01, 0.1, 0.5}) {
    const LogNormal draw(sigma);
    double sum = 0, logs = 0, squares = 0;
    const int n = 1 << 20;
    const RandomKey key = random_key(1, Draw::compute, 0, 0);
    for (std::uint32_t i = 0; i < n; ++i) {
      const double f = draw(key, i);
      sum += f, logs += std::log(f), squares += std::log(f) * std::log(f);
    }
    const double mean_log = logs / n;
    EXPECT_NEAR(sum / n, 1, 5 * std::max(sigma, 1e-6) / std::sqrt(n));
    EXPECT_NEAR(std::sqrt(squares / n - mean_log * mean_log), sigma, 1e-3 * sigma + 1e-6);
    EXPECT_NEAR(mean_log, -sigma * sigma / 2, 5 * sigma / std::sqrt(n) + 1e-6);
  }
}

TEST(Disturbance, BulkEqualsSingle) {
  cluster::Disturbance d;
  d.seed = 5, d.compute_sigma = 0.1, d.straggler_probability = 0.2;
  d.stragglers = {{3, 4.0}};
  const cluster::Disturber disturber(d, 100);
  std::vector<Id> ranks;
  for (Id r = 0; r < 100; r += 3) ranks.push_back(r);
  std::vector<double> out(ranks.size());
  disturber.compute_factors(ranks, 7, 9, out);
  for (std::size_t i = 0; i < ranks.size(); ++i)
    EXPECT_EQ(out[i], disturber.compute_factor(ranks[i], 7, 9));
}

TEST(Disturbance, StragglersPersistAndFollowTheSeed) {
  cluster::Disturbance d;
  d.straggler_probability = 0.1, d.straggler_factor = 3;
  int slow = 0, same = 0;
  d.seed = 1;
  const cluster::Disturber a(d, 10000);
  d.seed = 2;
  const cluster::Disturber b(d, 10000);
  for (Id r = 0; r < 10000; ++r) {
    EXPECT_EQ(a.compute_factor(r, 0, 0), a.compute_factor(r, 17, 23));
    slow += a.straggler_factor(r) == 3;
    same += a.straggler_factor(r) == 3 && b.straggler_factor(r) == 3;
  }
  EXPECT_NEAR(slow, 1000, 5 * 30);
  EXPECT_NEAR(same, 100, 5 * 10);
}

TEST(Disturbance, RefusesWhatMakesNoSense) {
  auto refused = [](auto change) {
    cluster::Disturbance d;
    change(d);
    EXPECT_THROW(cluster::Disturber(d, 4), InputError);
  };
  refused([](cluster::Disturbance& d) { d.compute_sigma = -1; });
  refused([](cluster::Disturbance& d) { d.straggler_probability = 1.5; });
  refused([](cluster::Disturbance& d) { d.stragglers = {{4, 2.0}}; });
  refused([](cluster::Disturbance& d) { d.stragglers = {{0, 0.0}}; });
}

}  // namespace
}  // namespace rehearse
