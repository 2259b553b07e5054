// The blocks' products against sums in fp64, for the views that blocks hand over: transposed,
// slices of wider rows, added to what is there; small and large, because their kernels differ.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "models/layers.h"

namespace rehearse {
namespace {

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

class Product : public testing::TestWithParam<std::array<std::int64_t, 3>> {};

TEST_P(Product, IsTheSum) {
  const auto [n, k, m] = GetParam();
  const at::Tensor wide = at::randn({n, 2 * k + 3}), a = wide.narrow(1, 3, k);
  const at::Tensor b = at::randn({k, m}), weight = at::randn({m, k}), bias = at::randn({m});
  const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  EXPECT_LT(difference(product(a, b), exact), 1e-6);
  EXPECT_LT(difference(product(a.contiguous(), weight.t()),
                       at::mm(a.to(at::kDouble), weight.t().to(at::kDouble))),
            1e-6);
  EXPECT_LT(
      difference(affine(a.contiguous(), weight, bias),
                 at::addmm(bias.to(at::kDouble), a.to(at::kDouble), weight.t().to(at::kDouble))),
      1e-6);
  const at::Tensor target = at::randn({n, m}), sum = target.to(at::kDouble) + exact;
  product_into(target, a, b, true);
  EXPECT_LT(difference(target, sum), 1e-6);
  product_into(target, a, b, false);
  EXPECT_LT(difference(target, exact), 1e-6);
}

TEST_P(Product, FillsASliceAlone) {
  const auto [n, k, m] = GetParam();
  const at::Tensor a = at::randn({k, n}), b = at::randn({k, m});
  const at::Tensor flat = at::zeros({n * m + 2});
  store_product(flat.narrow(0, 1, n * m).view({n, m}), a, b, false);
  EXPECT_EQ(flat[0].item<float>(), 0);
  EXPECT_EQ(flat[n * m + 1].item<float>(), 0);
  EXPECT_LT(difference(flat.narrow(0, 1, n * m).view({n, m}),
                       at::mm(a.t().to(at::kDouble), b.to(at::kDouble))),
            1e-6);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Product,
                         testing::Values(std::array<std::int64_t, 3>{3, 5, 7},
                                         std::array<std::int64_t, 3>{64, 64, 64},
                                         std::array<std::int64_t, 3>{256, 192, 768},
                                         std::array<std::int64_t, 3>{130, 771, 515}));

}  // namespace
}  // namespace rehearse
