// Compares quantiles with printed tables and with other programs.
#include "engine/base/numbers/quantiles.h"

#include <gtest/gtest.h>

namespace rehearse {
namespace {

TEST(Quantiles, NormalDistribution) {
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-15);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-15);
  EXPECT_NEAR(normal_quantile(1e-6), -4.753424308822899, 1e-14);
  EXPECT_NEAR(normal_quantile(0.99), -normal_quantile(0.01), 1e-15);
}

TEST(Quantiles, StudentsT) {
  EXPECT_NEAR(student_t95(1), 12.706204736174707, 1e-11);
  EXPECT_NEAR(student_t95(4), 2.7764451051977987, 1e-12);
  EXPECT_NEAR(student_t95(40), 2.0210753903062737, 1e-12);
  EXPECT_NEAR(student_t95(1000), 1.9623390808264078, 1e-12);
}

}  // namespace
}  // namespace rehearse
