// The kernels of cross-entropy and dropout are compiled for several instruction sets, and all
// versions must give the same bits: the digests below. tests/cli/test_emulated.py runs this file on
// emulated processors with fewer instructions.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/base/fnv.h"
#include "models/layers.h"

namespace rehearse::models {
namespace {

/// Random f32 (rows, columns) in [-most, most). Not from LibTorch's generator, whose numbers depend
/// on the processor.
at::Tensor numbers(std::int64_t rows, std::int64_t columns, unsigned seed, float most) {
  std::mt19937 engine(seed);
  at::Tensor values = at::empty({rows, columns});
  float* const data = values.data_ptr<float>();
  for (std::int64_t i = 0; i < rows * columns; ++i)
    data[i] = (static_cast<float>(engine() >> 8) * 0x1p-23F - 1) * most;
  return values;
}

/// FNV-1a over the bits of all elements.
std::uint64_t digest(const at::Tensor& values) {
  const at::Tensor flat = values.contiguous();
  return fnv1a({static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()});
}

TEST(SameBits, CrossEntropy) {
  const at::Tensor values = numbers(7, 515, 1, 12);
  const at::Tensor labels = at::arange(7, at::kLong).mul_(31);
  const Shard shard{0, 0, 509};
  const at::Tensor stats = exponentiate(values, labels, shard);
  EXPECT_EQ(digest(values), 0xac3e94cbf0332971U);
  EXPECT_EQ(digest(stats), 0x70b87390ed833931U);
  to_gradient(values, stats.unsqueeze(0), labels, shard, 0.25, {});
  EXPECT_EQ(digest(values), 0x2f1f893c52bb484U);
}

TEST(SameBits, Dropout) {
  at::Tensor x = numbers(6, 515, 2, 1).view({2, 3, 515});
  const at::Tensor residual = numbers(6, 515, 3, 1).view({2, 3, 515});
  Batch batch;
  batch.tokens = at::zeros({2, 3}, at::kLong);
  batch.seed = 7;
  drop(x, {batch, Site::mlp, 1, 0.3}, residual);
  EXPECT_EQ(digest(x), 0x7de17f8f8b656846U);
}

}  // namespace
}  // namespace rehearse::models
