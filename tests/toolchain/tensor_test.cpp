// Tests that the CPU part of LibTorch is found, links and computes in a program that links nothing
// of CUDA: a matrix product and a backward pass.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

namespace {

TEST(Tensor, MultipliesMatrices) {
  const at::Tensor a = at::arange(6, at::kFloat).reshape({2, 3});
  const at::Tensor product = a.matmul(a.t());
  EXPECT_TRUE(at::equal(product, at::tensor({5.0F, 14.0F, 14.0F, 50.0F}).reshape({2, 2})));
}

TEST(Tensor, DifferentiatesASquare) {
  at::Tensor x = at::tensor({1.0F, -2.0F, 3.0F});
  x.set_requires_grad(true);
  torch::autograd::backward({(x * x).sum()}, {});
  EXPECT_TRUE(at::equal(x.grad(), at::tensor({2.0F, -4.0F, 6.0F})));
}

}  // namespace
