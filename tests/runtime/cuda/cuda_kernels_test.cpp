// Compares the kernels of the CUDA plug-in with the functions of runtime/kernels that they stand
// for: the same bits for all types and sizes. They run on the CPU (tests/devices/emulated), or on a
// GPU with REHEARSE_TEST_DEVICE=cuda.
#include "tests/runtime/cuda/cuda_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>
#include <vector>

namespace rehearse::runtime {
namespace {

TEST_F(CudaKernels, MeasureTheSameNorm) {
  for (const DType type : floats)
    for (const std::int64_t count : {1, 15, 16, 17, 4095, 4096, 4097, 10'007, 65'536}) {
      const auto a = numbers(type, count, 1), b = numbers(DType::f32, count + 3, 2, 100);
      const auto a_there = there(a.data(), a.size()), b_there = there(b.data(), b.size());
      for (const bool add : {false, true}) {
        float here = 3;
        measure(std::vector<Values>{{a.data(), type, count}, {b.data(), DType::f32, count + 3}},
                0.25, add, &here);
        const auto norm = there(3.0F);
        as_body([&] {
          gpu().measure(std::vector<Values>{{a_there.get(), type, count},
                                            {b_there.get(), DType::f32, count + 3}},
                        0.25, add, reinterpret_cast<float*>(norm.get()));
        });
        EXPECT_EQ(std::bit_cast<int>(here), std::bit_cast<int>(back<float>(norm))) << count;
      }
    }
}

/// What an update works on, in the host's memory: param, grad, moment1, moment2, master.
using Tensors = std::array<std::vector<std::byte>, 5>;

struct UpdateCase {
  DType param = DType::f32, grad = DType::f32, moment = DType::f32;
  bool sgd = false, master = false, frozen = false, skip = false;
  OptimizerInterval interval(const std::array<std::byte*, 5>& at, std::int64_t count) const {
    return {.param = at[0],
            .grad = at[1],
            .moment1 = at[2],
            .moment2 = at[3],
            .master = master ? reinterpret_cast<float*>(at[4]) : nullptr,
            .param_type = param,
            .grad_type = grad,
            .moment_type = moment,
            .elements = count,
            .fresh = master};
  }
};

std::vector<UpdateCase> update_cases() {
  std::vector<UpdateCase> all;
  for (const DType param : floats)
    for (const DType grad : floats)
      for (const DType moment : {DType::f32, DType::bf16})
        for (const unsigned bits : {0U, 1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 10U, 11U})
          all.push_back({.param = param,
                         .grad = grad,
                         .moment = moment,
                         .sgd = bits >= 8,
                         .master = (bits & 1U) != 0,
                         .frozen = bits < 8 && (bits & 4U) != 0,
                         .skip = (bits & 2U) != 0});
  return all;
}

TEST_F(CudaKernels, UpdateToTheSameWeights) {
  constexpr std::int64_t count = 5001;
  for (const UpdateCase& one : update_cases()) {
    Tensors here{numbers(one.param, count, 1), numbers(one.grad, count, 2),
                 numbers(one.moment, count, 3), numbers(one.moment, count, 4, 1e-3F),
                 numbers(DType::f32, count, 5)};
    // A second moment is never negative: without the bits of signs.
    const auto size = static_cast<std::size_t>(size_of(one.moment));
    for (std::size_t i = size - 1; i < here[3].size(); i += size) here[3][i] &= std::byte{0x7f};
    std::array<std::shared_ptr<std::byte>, 5> memory;
    std::array<std::byte*, 5> at_here = {}, at_there = {};
    for (std::size_t i = 0; i < here.size(); ++i) {
      memory[i] = there(here[i].data(), here[i].size());
      at_here[i] = here[i].data(), at_there[i] = memory[i].get();
    }
    const OptimizerStep step{.kind = one.sgd ? plan::Optimizer::sgd : plan::Optimizer::adamw,
                             .lr = 1e-2,
                             .weight_decay = 0.1,
                             .step = 7,
                             .frozen = one.frozen ? 2 : 0};
    StepScalars scalars = scalars_of(step, 7, 0.5);
    scalars.skip = one.skip;
    update(step, one.interval(at_here, count), true, scalars);
    const auto scalars_there = there(scalars);
    as_body([&] {
      gpu().update(step, one.interval(at_there, count), true,
                   reinterpret_cast<const StepScalars*>(scalars_there.get()));
    });
    for (std::size_t i = 0; i < here.size(); ++i)
      EXPECT_TRUE(back(memory[i], here[i].size()) == here[i])
          << "tensor " << i << " param " << static_cast<int>(one.param) << " grad "
          << static_cast<int>(one.grad) << " moment " << static_cast<int>(one.moment) << " sgd "
          << one.sgd << " master " << one.master << " frozen " << one.frozen << " skip "
          << one.skip;
  }
}

TEST_F(CudaKernels, DecideAndRescaleAlike) {
  for (const float squares : {0.0F, 4.0F, 1e20F, std::numeric_limits<float>::infinity()})
    for (const float scale : {1.0F, 65536.0F}) {
      SkipCount skips{.skipped = 1, .last = 3};
      StepScalars scalars;
      double norm = -1;
      const auto squares_there = there(squares), scale_there = there(scale);
      const auto skips_there = there(skips), scalars_there = there(scalars);
      const auto norm_there = there(norm);
      const OptimizerStep step{.lr = 1e-3, .step = 9};
      decide(step, {.squares = &squares, .loss_scale = &scale}, 1, skips, scalars, &norm);
      std::array<float, 2> state = {scale, 1999};
      const auto state_there = there(state);
      rescale(&squares, state.data());
      as_body([&] {
        const auto* const numbers = reinterpret_cast<const float*>(squares_there.get());
        gpu().decide(
            step,
            {.squares = numbers, .loss_scale = reinterpret_cast<const float*>(scale_there.get())},
            1, reinterpret_cast<SkipCount*>(skips_there.get()),
            reinterpret_cast<StepScalars*>(scalars_there.get()),
            reinterpret_cast<double*>(norm_there.get()));
        gpu().rescale(numbers, reinterpret_cast<float*>(state_there.get()));
      });
      EXPECT_EQ(norm, back<double>(norm_there));
      EXPECT_EQ(skips.skipped, back<SkipCount>(skips_there).skipped);
      EXPECT_EQ(skips.last, back<SkipCount>(skips_there).last);
      const auto found = back<StepScalars>(scalars_there);
      EXPECT_EQ(scalars.grad_scale, found.grad_scale);
      EXPECT_EQ(scalars.step_size, found.step_size);
      EXPECT_EQ(scalars.root_correction, found.root_correction);
      EXPECT_EQ(scalars.skip, found.skip);
      EXPECT_EQ(state, (back<std::array<float, 2>>(state_there)));
    }
}

TEST_F(CudaKernels, ObserveTheSameVariances) {
  constexpr std::int64_t count = 1001;
  for (const DType type : floats)
    for (const int stride : {1, 3}) {
      std::vector<float> state(1 + 2 * static_cast<std::size_t>(count));
      const auto state_there = there(state.data(), 4 * state.size());
      // The third step is skipped; the fourth has a value that ends the observation.
      for (const unsigned step : {1U, 2U, 3U, 4U, 5U}) {
        auto values = numbers(type, count, step);
        if (step == 4)
          values = stored(type, std::vector<float>(count, std::numeric_limits<float>::infinity()));
        const float squares = step == 3 ? std::numeric_limits<float>::infinity() : 1, scale = 8;
        const auto values_there = there(values.data(), values.size());
        const auto squares_there = there(squares), scale_there = there(scale);
        observe(values.data(), type, count, stride, {.squares = &squares, .loss_scale = &scale},
                state.data());
        as_body([&] {
          gpu().observe({values_there.get(), type, count}, stride,
                        {.squares = reinterpret_cast<const float*>(squares_there.get()),
                         .loss_scale = reinterpret_cast<const float*>(scale_there.get())},
                        reinterpret_cast<float*>(state_there.get()));
        });
        EXPECT_EQ(back<float>(state_there), state[0]) << step;
        if (step < 4) {  // afterwards there are NaNs, of which every device has its own
          EXPECT_TRUE(std::ranges::equal(back(state_there, 4 * state.size()),
                                         std::as_bytes(std::span(state))))
              << step;
        }
      }
      EXPECT_EQ(state[0], -3);
    }
}

/// On a target, an anchor, a moment and sources.
Average average_of(program::KernelKind kind, const float* share, bool shared,
                   const std::array<float*, 6>& at, std::span<const float* const> sources) {
  return {.kind = kind,
          .scale = 0.3F,
          .momentum = shared ? 0 : 0.9F,
          .share = shared ? share : nullptr,
          .sources = sources,
          .anchor = at[1],
          .moment = at[2],
          .target = at[0],
          .elements = 5001};
}

TEST_F(CudaKernels, AverageToTheSameWeights) {
  using program::KernelKind;
  constexpr std::size_t size = std::size_t{4} * 5001;
  for (const KernelKind kind :
       {KernelKind::weigh, KernelKind::drift, KernelKind::outer_step, KernelKind::mix})
    for (const float share : {-1.0F, 0.0F, 0.75F})
      for (const std::size_t sources : {0, 1, 3}) {
        if (kind != KernelKind::mix && sources != 1) continue;
        std::array<std::vector<std::byte>, 6> here;
        std::array<std::shared_ptr<std::byte>, 6> memory;
        std::array<float*, 6> at_here = {}, at_there = {};
        for (std::size_t i = 0; i < here.size(); ++i) {
          here[i] = numbers(DType::f32, 5001, static_cast<unsigned>(i));
          memory[i] = there(here[i].data(), size);
          at_here[i] = reinterpret_cast<float*>(here[i].data());
          at_there[i] = reinterpret_cast<float*>(memory[i].get());
        }
        const std::vector<const float*> from_here(at_here.end() - 3, at_here.end()),
            from_there(at_there.end() - 3, at_there.end());
        const auto share_there = there(share);
        average(average_of(kind, &share, share >= 0, at_here, std::span(from_here).first(sources)));
        as_body([&] {
          gpu().average(average_of(kind, reinterpret_cast<const float*>(share_there.get()),
                                   share >= 0, at_there, std::span(from_there).first(sources)));
        });
        for (std::size_t i = 0; i < here.size(); ++i)
          EXPECT_TRUE(back(memory[i], size) == here[i])
              << "tensor " << i << " of kernel " << static_cast<int>(kind) << ", share " << share
              << ", sources " << sources;
      }
}

TEST_F(CudaKernels, MemoryIsZeroAndTooMuchIsRefused) {
  EXPECT_EQ(back(device_->allocate(1000), 1000), std::vector<std::byte>(1000));
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
