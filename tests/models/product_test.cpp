// Compares the blocks' products with fp64 products, for the kinds of views that blocks pass:
// transposed, slices of wider rows, and targets that are added to. Small and large products have
// different kernels, so both are tested, and small ones also with the kernels of the large. Then
// tests how the library for large products is chosen.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/models/way_of_large_products.h"

namespace rehearse::models {
namespace {

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

using Sizes = std::array<std::int64_t, 3>;
class Product : public testing::TestWithParam<std::tuple<Sizes, Way>> {
 protected:
  TakeWay taken_{std::get<1>(GetParam())};
};

TEST_P(Product, IsTheSum) {
  const auto [n, k, m] = std::get<0>(GetParam());
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
  const auto [n, k, m] = std::get<0>(GetParam());
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
                         testing::Combine(testing::Values(Sizes{3, 5, 7}, Sizes{64, 64, 64},
                                                          Sizes{1, 96, 33}, Sizes{256, 192, 768},
                                                          Sizes{130, 771, 515}),
                                          testing::Values(Way::by_size, Way::of_the_large)));

void rounded(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b, bool add) {
  plain_product_into(target, a.to(at::kBFloat16).to(at::kFloat), b, add);
}
void overwriting(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b, bool) {
  plain_product_into(target, a, b, false);
}
void refusing(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) {
  TORCH_CHECK(false, "needs another processor\nand a stack");
}
void failing(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) {
  throw std::bad_alloc();
}

TEST(LargeProducts, AreComparedBeforeTheirWayIsTaken) {
  EXPECT_EQ(mismatch_with_libtorch(plain_product_into), "");
  EXPECT_THAT(mismatch_with_libtorch(rounded),
              testing::MatchesRegex("are .*e-03 away from LibTorch's own"));
  EXPECT_THAT(mismatch_with_libtorch(overwriting), testing::HasSubstr("away from LibTorch's own"));
  EXPECT_EQ(mismatch_with_libtorch(refusing), "are refused: needs another processor");
  EXPECT_THAT(mismatch_with_libtorch(failing), testing::HasSubstr("are refused: "));
}

// The choice is the same whatever was computed before; otherwise a resumed run would not compute
// the same bits.
TEST(LargeProducts, GoOneWay) {
  const LargeProducts& before = large_products();
  EXPECT_NE(before.why, "");
  EXPECT_EQ(before.one_dnn, mismatch_with_libtorch(one_dnn_product_into).empty() &&
                                vector_instructions() == "AVX512")
      << before.why;
  at::manual_seed(1);
  const at::Tensor a = at::rand({3});
  at::manual_seed(1);
  mismatch_with_libtorch(one_dnn_product_into);  // draws nothing from the generator
  EXPECT_TRUE(at::equal(at::rand({3}), a));
}

}  // namespace
}  // namespace rehearse::models
