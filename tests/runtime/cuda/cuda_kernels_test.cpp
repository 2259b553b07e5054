// Compares the kernels of the CUDA plug-in, as a CPU runs them (tests/devices/emulated), with the
// functions of runtime/kernels that they stand for: the same bits for all types and sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/device/accelerator.h"
#include "runtime/device/load_device.h"
#include "runtime/kernels/floats.h"
#include "tests/runtime/comm_ranks.h"

namespace rehearse::runtime {
namespace {

using program::DType;

constexpr DType floats[] = {DType::f32, DType::bf16, DType::f16};

class CudaKernels : public testing::Test {
 protected:
  ~CudaKernels() override { control_.finish(); }
  Accelerator& gpu() { return *device_->accelerator(); }

  Control control_{Environment{}, patient()};
  std::unique_ptr<Device> device_ = make_device("emulated", 0, &control_);
};

/// Normal numbers in the memory of a tensor of this type.
std::vector<std::byte> numbers(DType type, std::int64_t count, unsigned seed, float scale = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  std::ranges::generate(values, [&] { return normal(engine); });
  std::vector<std::byte> out(static_cast<std::size_t>(count * size_of(type)));
  if (type == DType::f32)
    std::memcpy(out.data(), values.data(), out.size());
  else
    store_f32(values.data(), count, out.data(), type, 0);
  return out;
}

TEST_F(CudaKernels, MeasureTheSameNorm) {
  for (const DType type : floats)
    for (const std::int64_t count : {1, 15, 16, 17, 4095, 4096, 4097, 10'007, 65'536}) {
      const auto a = numbers(type, count, 1), b = numbers(DType::f32, count + 3, 2, 100);
      const std::vector<Values> sources = {{a.data(), type, count},
                                           {b.data(), DType::f32, count + 3}};
      for (const bool add : {false, true}) {
        float here = 3, there = 3;
        measure(sources, 0.25, add, &here);
        gpu().measure(sources, 0.25, add, &there);
        EXPECT_EQ(std::bit_cast<int>(here), std::bit_cast<int>(there)) << count;
      }
    }
}

/// The tensors of an update, twice: of the CPU and of the device.
struct Weights {
  DType param_type, grad_type, moment_type;
  std::vector<std::byte> param, grad, moment1, moment2, master;
  OptimizerInterval interval(std::int64_t count, bool with_master, bool fresh) {
    return {.param = param.data(),
            .grad = grad.data(),
            .moment1 = moment1.data(),
            .moment2 = moment2.data(),
            .master = with_master ? reinterpret_cast<float*>(master.data()) : nullptr,
            .param_type = param_type,
            .grad_type = grad_type,
            .moment_type = moment_type,
            .elements = count,
            .fresh = fresh};
  }
};

TEST_F(CudaKernels, UpdateToTheSameWeights) {
  constexpr std::int64_t count = 5001;
  int compared = 0;
  for (const DType param : floats)
    for (const DType grad : floats)
      for (const DType moment : {DType::f32, DType::bf16})
        for (const auto kind : {plan::Optimizer::adamw, plan::Optimizer::sgd})
          for (const bool master : {false, true})
            for (const std::int64_t frozen : {0, 2})
              for (const bool skip : {false, true}) {
                if (frozen > 0 && kind == plan::Optimizer::sgd) continue;
                Weights here{param,
                             grad,
                             moment,
                             numbers(param, count, 1),
                             numbers(grad, count, 2),
                             numbers(moment, count, 3),
                             numbers(moment, count, 4, 1e-3F),
                             numbers(DType::f32, count, 5)};
                // A second moment is never negative.
                if (moment == DType::f32)
                  for (std::int64_t i = 0; i < count; ++i) {
                    auto& value = reinterpret_cast<float*>(here.moment2.data())[i];
                    value = std::abs(value);
                  }
                else
                  for (std::int64_t i = 0; i < count; ++i)
                    reinterpret_cast<std::uint16_t*>(here.moment2.data())[i] &= 0x7fff;
                Weights there = here;
                const OptimizerStep step{
                    .kind = kind, .lr = 1e-2, .weight_decay = 0.1, .step = 7, .frozen = frozen};
                StepScalars scalars = scalars_of(step, 7, 0.5);
                scalars.skip = skip;
                update(step, here.interval(count, master, master), true, scalars);
                gpu().update(step, there.interval(count, master, master), true, &scalars);
                EXPECT_TRUE(here.param == there.param && here.moment1 == there.moment1 &&
                            here.moment2 == there.moment2 && here.master == there.master)
                    << "param " << static_cast<int>(param) << " grad " << static_cast<int>(grad)
                    << " moment " << static_cast<int>(moment) << " sgd "
                    << (kind == plan::Optimizer::sgd) << " master " << master << " frozen "
                    << frozen << " skip " << skip;
                ++compared;
              }
  EXPECT_EQ(compared, 3 * 3 * 2 * 3 * 2 * 2);
}

TEST_F(CudaKernels, DecideAndRescaleAlike) {
  for (const float squares : {0.0F, 4.0F, 1e20F, std::numeric_limits<float>::infinity()})
    for (const float scale : {1.0F, 65536.0F}) {
      const NormAndScale gradients{.squares = &squares, .loss_scale = &scale};
      SkipCount skips_here{.skipped = 1, .last = 3}, skips_there = skips_here;
      StepScalars here, there;
      double norm_here = -1, norm_there = -1;
      const OptimizerStep step{.lr = 1e-3, .step = 9};
      decide(step, gradients, 1, skips_here, here, &norm_here);
      gpu().decide(step, gradients, 1, &skips_there, &there, &norm_there);
      EXPECT_EQ(norm_here, norm_there);
      EXPECT_EQ(skips_here.skipped, skips_there.skipped);
      EXPECT_EQ(skips_here.last, skips_there.last);
      EXPECT_EQ(here.grad_scale, there.grad_scale);
      EXPECT_EQ(here.step_size, there.step_size);
      EXPECT_EQ(here.root_correction, there.root_correction);
      EXPECT_EQ(here.skip, there.skip);
      float state_here[] = {scale, 1999}, state_there[] = {scale, 1999};
      rescale(&squares, state_here);
      gpu().rescale(&squares, state_there);
      EXPECT_EQ(state_here[0], state_there[0]);
      EXPECT_EQ(state_here[1], state_there[1]);
    }
}

TEST_F(CudaKernels, MemoryIsZeroAndTooMuchIsRefused) {
  const auto memory = device_->allocate(1000);
  EXPECT_TRUE(std::all_of(memory.get(), memory.get() + 1000,
                          [](std::byte one) { return one == std::byte{0}; }));
  try {
    device_->allocate(std::int64_t{1} << 50);
    FAIL() << "1 PiB was given";
  } catch (const BackendError& error) {
    EXPECT_NE(std::string(error.what()).find("no room for 1125899906842624 bytes"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace rehearse::runtime
