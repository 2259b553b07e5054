// The kernels on factors of a matrix, compared with products in double, and where columns depend on
// each other, are 0 or are not finite.
#include "runtime/kernels/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace rehearse::runtime {
namespace {

using Floats = std::vector<float>;

Floats random_values(std::int64_t n, std::uint64_t seed) {
  Floats out(static_cast<std::size_t>(n));
  draw(random_key(seed, Draw::test, 0, 0), 0, out.data(), n);
  return out;
}

/// The largest difference of left^T left from the unit matrix.
double unlike_orthonormal(const program::Factors& size, const Floats& left) {
  double most = 0;
  for (int j = 0; j < size.rank; ++j)
    for (int k = 0; k < size.rank; ++k) {
      double sum = 0;
      for (std::int64_t i = 0; i < size.rows; ++i)
        sum += double{left[j * size.rows + i]} * double{left[k * size.rows + i]};
      most = std::max(most, std::fabs(sum - (j == k)));
    }
  return most;
}

const program::Factors sizes[] = {{1, 1, 1}, {7, 5, 2}, {16, 16, 4}, {33, 100, 8}, {4, 9, 4}};

TEST(LowRank, ProjectsAsProductsInDouble) {
  for (const program::Factors& size : sizes) {
    const Floats matrix = random_values(size.rows * size.columns, 1),
                 right = random_values(size.rank * size.columns, 2),
                 other = random_values(size.rank * size.rows, 3);
    Floats left(size.rank * size.rows), back(size.rank * size.columns);
    project(size, matrix.data(), right.data(), left.data());
    project_back(size, matrix.data(), other.data(), back.data());
    for (int k = 0; k < size.rank; ++k) {
      for (std::int64_t i = 0; i < size.rows; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < size.columns; ++j)
          sum += double{matrix[i * size.columns + j]} * double{right[k * size.columns + j]};
        EXPECT_NEAR(left[k * size.rows + i], sum, 1e-4);
      }
      for (std::int64_t j = 0; j < size.columns; ++j) {
        double sum = 0;
        for (std::int64_t i = 0; i < size.rows; ++i)
          sum += double{matrix[i * size.columns + j]} * double{other[k * size.rows + i]};
        EXPECT_NEAR(back[k * size.columns + j], sum, 1e-4);
      }
    }
  }
}

TEST(LowRank, MakesColumnsOrthonormalWhateverTheyAre) {
  for (const program::Factors& size : sizes) {
    const std::int64_t all = size.rank * size.rows;
    std::vector<Floats> cases{random_values(all, 1), Floats(all), Floats(all, 1.0F),
                              random_values(all, 2), random_values(all, 3)};
    for (std::int64_t i = 0; i < size.rows; ++i) {
      cases[3][i] = std::numeric_limits<float>::quiet_NaN();
      // The last column is nearly a multiple of the first one.
      cases[4][all - size.rows + i] = 3 * cases[4][i] * (i == 0 ? 1.0000001F : 1);
    }
    for (std::size_t c = 0; c < cases.size(); ++c) {
      Floats left = cases[c];
      orthonormalise(size, left.data());
      EXPECT_LT(unlike_orthonormal(size, left), 1e-5) << size.rows << " rows, case " << c;
    }
  }
}

TEST(LowRank, KeepsTheFirstDirection) {
  Floats left = random_values(50, 1);
  const Floats before = left;
  orthonormalise({25, 1, 2}, left.data());
  for (int i = 1; i < 25; ++i) EXPECT_NEAR(left[i] / left[0], before[i] / before[0], 1e-4);
}

// With as many columns as the matrix has, nothing is missed. With fewer, the residual is the rest.
TEST(LowRank, SaysAllOfAMatrixOfItsRankAndKeepsTheRestElse) {
  for (const program::Factors& size : sizes) {
    const Floats matrix = random_values(size.rows * size.columns, 1);
    Floats right = random_values(size.rank * size.columns, 2), left(size.rank * size.rows);
    project(size, matrix.data(), right.data(), left.data());
    orthonormalise(size, left.data());
    project_back(size, matrix.data(), left.data(), right.data());
    Floats target(matrix.size()), residual = matrix;
    expand(size, left.data(), right.data(), 1, target.data(), residual.data());
    double rest = 0, whole = 0;
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      EXPECT_EQ(residual[i], matrix[i] - target[i]);
      rest += residual[i] * residual[i], whole += matrix[i] * matrix[i];
    }
    const bool full = size.rank == std::min(size.rows, size.columns);
    EXPECT_EQ(rest < 1e-9 * whole, full) << size.rows << " x " << size.columns;
    EXPECT_LE(rest, whole);
    // Half of it: that of two ranks.
    residual = matrix;
    expand(size, left.data(), right.data(), 0.5F, target.data(), residual.data());
    EXPECT_EQ(residual[0], matrix[0] - 0.5F * target[0]);
  }
}

TEST(LowRank, ForgetsWhatIsNotFinite) {
  const Floats left{1, 2};
  const Floats right{std::numeric_limits<float>::infinity(), 1};
  Floats target(4), residual{1, 1, 1, 1};
  expand({2, 2, 1}, left.data(), right.data(), 1, target.data(), residual.data());
  EXPECT_FALSE(std::isfinite(target[0]));
  EXPECT_EQ(residual, (Floats{0, 0, 0, -1}));
}

TEST(LowRank, DrawsNormalNumbersByTheirPlace) {
  const RandomKey key = random_key(3, Draw::factor, 5, 0);
  constexpr int n = 100'000;
  Floats whole(n), part(100);
  draw(key, 0, whole.data(), n);
  draw(key, 700, part.data(), 100);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 700));
  double sum = 0, squares = 0;
  int within = 0;
  for (const float one : whole)
    sum += one, squares += double{one} * one, within += std::fabs(one) < 1;
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(within / double{n}, 0.6827, 0.005);
}

TEST(LowRank, BlendsMomenta) {
  const Floats moment{4, -8};
  Floats target{1, 1};
  blend_momentum(0.75, 0.5, moment.data(), target.data(), 2);
  EXPECT_EQ(target, (Floats{0.25F + 0.375F * 4, 0.25F - 0.375F * 8}));
}

}  // namespace
}  // namespace rehearse::runtime
