// Seconds of single kernels: products in waves of tiles against a second implementation of the
// formula in device_time.h, and the other kinds against closed forms.
#include "engine/costs/device/device_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/engine/rig.h"
#include "tests/message_of.h"

namespace rehearse::costs {
namespace {

using model::Launch;
using program::DType;

constexpr int sms = 100;

/// Ten TFLOP/s in 16 bits after the efficiency; so much bandwidth that no product waits for it.
cluster::DeviceKind gpu() {
  return {.name = "gpu",
          .peak_f32 = FlopsPerSecond(1e12),
          .peak_f16 = FlopsPerSecond(2e13),
          .peak_bf16 = FlopsPerSecond(4e13),
          .peak_tf32 = FlopsPerSecond(8e12),
          .peak_fp8 = FlopsPerSecond(1.6e14),
          .memory_bandwidth = BytesPerSecond(1e30),
          .efficiency = 0.5,
          .f32_efficiency = 0.8,
          .attention_efficiency = 0.4,
          .multiprocessors = sms,
          .launch = Seconds(2e-6)};
}
Launch product(double rows, double columns, double inner, double batch = 1) {
  return {.kind = Launch::Kind::product,
          .batch = batch,
          .rows = rows,
          .columns = columns,
          .inner = inner,
          .bytes = 2 * batch * (rows * inner + inner * columns + rows * columns)};
}
double f16_seconds(const Launch& launch, const cluster::DeviceKind& kind = gpu()) {
  return launch_seconds(kind, launch, DType::f16, false);
}

/// The formula again, in other words: each multiprocessor computes the tiles that fall to it one
/// after the other, at its part of the rate, times what tiles of this size reach.
double waves_of_tiles(const Launch& l, double rate, int multiprocessors) {
  struct Size {
    int rows, columns;
    double reached;
  };
  double least = 1e300;
  for (const Size size : {Size{256, 128, 1.0},
                          {128, 256, 1.0},
                          {128, 128, 0.93},
                          {128, 64, 0.75},
                          {64, 128, 0.75},
                          {64, 64, 0.55}}) {
    const auto pieces = [](double whole, int part) {
      return (static_cast<long>(whole) + part - 1) / part;
    };
    const long tiles =
        static_cast<long>(l.batch) * pieces(l.rows, size.rows) * pieces(l.columns, size.columns);
    const long most = (tiles + multiprocessors - 1) / multiprocessors;  // of one multiprocessor
    const double flops = 2.0 * size.rows * size.columns * (l.inner + 70);
    least = std::min(least, double(most) * flops * multiprocessors / (rate * size.reached));
  }
  return least;
}

TEST(DeviceTime, ProductsTakeWavesOfTiles) {
  for (const double rows : {64, 100, 512, 1024, 4096, 8192})
    for (const double columns : {64, 128, 1000, 3072, 51200})
      for (const double inner : {64, 1024, 4096})
        for (const double batch : {1, 32}) {
          const Launch l = product(rows, columns, inner, batch);
          const double expected = waves_of_tiles(l, 1e13, sms) + 2e-6;
          EXPECT_NEAR(f16_seconds(l), expected, 1e-12 * expected)
              << rows << " x " << columns << " x " << inner << ", " << batch;
        }
}

TEST(DeviceTime, TheLastWaveCostsAsMuchAsAFullOne) {
  // One column of 256 x 128 tiles. Tiles of 128 rows would be twice as many, in two waves where one
  // of these is enough.
  const auto seconds = [](double tiles) { return f16_seconds(product(256 * tiles, 128, 4096)); };
  const double full = seconds(sms);
  EXPECT_NEAR(full, 2.0 * 256 * 128 * (4096 + 70) / (1e13 / sms) + 2e-6, 1e-15);
  EXPECT_EQ(seconds(0.55 * sms), full);  // most of half of the multiprocessors is idle
  EXPECT_EQ(f16_seconds(product(256 * sms - 255, 128, 4096)), full);
  EXPECT_NEAR(seconds(2 * sms) - 2e-6, 2 * (full - 2e-6), 1e-15);
  // One more tile is one more wave, of the smallest tiles that hold it.
  EXPECT_GT(seconds(sms + 1), 1.3 * full);
  EXPECT_EQ(seconds(sms + 1), f16_seconds(product(256 * sms + 1, 128, 4096)));
}

TEST(DeviceTime, FewTilesTakeAsLongAsOne) {
  // 64 x 64 is one tile of the smallest size; 100 products of a batch fill the multiprocessors.
  const double one = f16_seconds(product(64, 64, 512));
  EXPECT_NEAR(one, 2.0 * 64 * 64 * (512 + 70) / (1e13 / sms * 0.55) + 2e-6, 1e-15);
  EXPECT_EQ(f16_seconds(product(64, 64, 512, sms)), one);
  EXPECT_EQ(f16_seconds(product(1, 1, 512)), one);
  EXPECT_NEAR(f16_seconds(product(64, 64, 512, sms + 1)) - 2e-6, 2 * (one - 2e-6), 1e-15);
}

TEST(DeviceTime, WithoutMultiprocessorsAProductTakesItsFlops) {
  cluster::DeviceKind core = gpu();
  core.multiprocessors = 0;
  for (const double rows : {1, 100, 129, 4096})
    EXPECT_DOUBLE_EQ(f16_seconds(product(rows, 77, 300), core), 2 * rows * 77 * 300 / 1e13 + 2e-6);
}

TEST(DeviceTime, AProductIsNotFasterThanItsOperands) {
  for (const int multiprocessors : {0, sms}) {
    cluster::DeviceKind slow = gpu();
    slow.multiprocessors = multiprocessors;
    slow.memory_bandwidth = BytesPerSecond(1e9), slow.memory_efficiency = 0.8;
    const Launch thin = product(1, 4096, 4096);  // a product with a vector reads a whole matrix
    EXPECT_DOUBLE_EQ(f16_seconds(thin, slow), thin.bytes / 0.8e9 + 2e-6);
    EXPECT_DOUBLE_EQ(f16_seconds(thin, slow), kernel_seconds(slow, thin.bytes));
    // A large one computes for longer than it reads.
    slow.memory_bandwidth = BytesPerSecond(1e12);
    const Launch large = product(8192, 8192, 8192);
    EXPECT_GT(f16_seconds(large, slow), 2 * kernel_seconds(slow, large.bytes));
  }
}

TEST(DeviceTime, RatesFollowTheTypeAndTheSoftware) {
  cluster::DeviceKind core = gpu();
  core.multiprocessors = 0;
  const Launch l = product(1000, 1000, 1000);
  const auto rate = [&](DType dtype, bool tf32) {
    return l.flops() / (launch_seconds(core, l, dtype, tf32) - 2e-6);
  };
  EXPECT_NEAR(rate(DType::f16, false), 0.5 * 2e13, 1);
  EXPECT_NEAR(rate(DType::bf16, false), 0.5 * 4e13, 1);
  EXPECT_NEAR(rate(DType::f32, false), 0.8 * 1e12, 1);
  // TF32 only where the software wants it, for f32 only, and only where the device has it.
  EXPECT_NEAR(rate(DType::f32, true), 0.8 * 8e12, 1);
  EXPECT_NEAR(rate(DType::f16, true), 0.5 * 2e13, 1);
  core.peak_tf32 = FlopsPerSecond(0);
  EXPECT_NEAR(rate(DType::f32, true), 0.8 * 1e12, 1);
}

TEST(DeviceTime, AProductOfEightBitOperandsHasAPeakOfItsOwn) {
  Launch l = product(1000, 3000, 4096);
  l.fp8 = true;
  EXPECT_DOUBLE_EQ(launch_seconds(gpu(), l, DType::bf16, false),
                   waves_of_tiles(l, 0.5 * 1.6e14, sms) + 2e-6);
  const model::ModelSpec model = model::load_model("gpt2-124m", 0);
  const auto seconds = [&](const char* device, bool fp8) {
    return compute_seconds(cluster::load_device(device), model, 1, program::Pass::forward, 8,
                           model::TensorSplit(1).in_fp8(fp8), DType::bf16);
  };
  double sum = 0;
  for (const Launch& launch : launches_of(model, 1, program::Pass::forward, 8,
                                          model::TensorSplit(1).in_fp8(true), DType::bf16))
    sum += launch_seconds(cluster::load_device("H100"), launch, DType::bf16, false);
  EXPECT_DOUBLE_EQ(seconds("H100", true), sum);
  EXPECT_NO_THROW(seconds("A100 80GB", false));
  EXPECT_EQ(test::message_of<InputError>([&] { seconds("A100 80GB", true); }),
            "method.precision: A100 80GB cannot compute in fp8; bf16 can");
}

TEST(DeviceTime, FusedAttentionReachesAPartOfTheRate) {
  const Launch l{
      .kind = Launch::Kind::attention, .batch = 32, .rows = 512, .columns = 512, .inner = 128};
  EXPECT_DOUBLE_EQ(f16_seconds(l), l.flops() / (1e13 * 0.4) + 2e-6);
}

TEST(DeviceTime, FlashAttentionHasAnEfficiencyAndARateOfItsOwn) {
  cluster::DeviceKind kind = gpu();
  kind.flash_efficiency = 0.3;
  Launch l{.kind = Launch::Kind::flash, .batch = 32, .rows = 512, .columns = 512, .inner = 128};
  EXPECT_DOUBLE_EQ(f16_seconds(l, kind), l.flops() / (1e13 * 0.3) + 2e-6);
  l.rate = 2;  // a causal mask removes half of the pairs
  EXPECT_DOUBLE_EQ(f16_seconds(l, kind), l.flops() / (1e13 * 0.6) + 2e-6);
}

TEST(DeviceTime, AMemoryKernelTakesItsBytes) {
  cluster::DeviceKind kind = gpu();
  kind.memory_bandwidth = BytesPerSecond(1e12), kind.memory_efficiency = 0.8;
  const Launch l{.bytes = 1e9};
  for (const DType dtype : {DType::f32, DType::f16})
    EXPECT_DOUBLE_EQ(launch_seconds(kind, l, dtype, false), 1e9 / 0.8e12 + 2e-6);
  const Launch sum{.bytes = 1e9, .rate = 0.25};
  EXPECT_DOUBLE_EQ(launch_seconds(kind, sum, DType::f16, false), 4e9 / 0.8e12 + 2e-6);
}

TEST(DeviceTime, APassIsTheSumOfItsLaunches) {
  model::ModelSpec model = model::load_model("gpt2-124m", 0);
  model.software = software::load_software("nvidia-bert");
  const cluster::DeviceKind kind = cluster::load_device("A100 80GB");
  for (const bool tf32 : {false, true}) {
    model.software.tf32 = tf32;
    for (Id s = 0; s < 3; ++s)
      for (const program::Pass pass : {program::Pass::forward, program::Pass::backward}) {
        double sum = 0;
        for (const Launch& l : launches_of(model, s, pass, 4, 2, DType::f32))
          sum += launch_seconds(kind, l, DType::f32, tf32);
        EXPECT_DOUBLE_EQ(compute_seconds(kind, model, s, pass, 4, 2, DType::f32), sum);
      }
  }
  model.software.tf32 = false;
  const double slow = compute_seconds(kind, model, 2, program::Pass::forward, 4, 1, DType::f32);
  model.software.tf32 = true;
  EXPECT_GT(slow, 3 * compute_seconds(kind, model, 2, program::Pass::forward, 4, 1, DType::f32));
  const cluster::DeviceKind v100 = cluster::load_device("V100 SXM2 16GB");
  EXPECT_THAT(test::message_of([&] {
                compute_seconds(v100, model, 1, program::Pass::forward, 1, 1, DType::bf16);
              }),
              testing::HasSubstr("V100 SXM2 16GB cannot compute in bf16"));
}

}  // namespace
}  // namespace rehearse::costs
