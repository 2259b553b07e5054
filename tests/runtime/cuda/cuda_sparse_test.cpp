// Compares select and scatter_add of the CUDA plug-in with those of runtime/kernels: the same bytes
// for all codings, types, sizes and kinds of gradients. See cuda_kernels_test.cpp.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "engine/program/packets.h"
#include "tests/runtime/cuda/cuda_kernels.h"

namespace rehearse::runtime {
namespace {

using program::Coding;
using program::Feedback;
using program::Kernel;

constexpr std::int64_t sizes[] = {1, 7, 4096, 4097, 70'001};
constexpr Coding codings[] = {Coding::index32, Coding::bitmap, Coding::delta16};

enum class Entries { normal, mostly_zero, ties, zero };
constexpr Entries kinds[] = {Entries::normal, Entries::mostly_zero, Entries::ties, Entries::zero};

std::vector<float> entries(Entries kind, std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& one : out) {
    const float value = normal(engine);
    switch (kind) {
      case Entries::normal:
        one = value;
        break;
      case Entries::mostly_zero:  // more zeros than the list of a select has room for
        one = std::fabs(value) < 2.5F ? 0 : value;
        break;
      case Entries::ties:
        one = std::round(value);
        break;
      case Entries::zero:
        one = 0;
    }
  }
  return out;
}

std::size_t bytes_of(const Kernel& kernel) {
  return static_cast<std::size_t>(packet_bytes(kernel));
}

/// Every combination of size, number of entries kept, coding and kind of gradient, each with one of
/// the other choices.
struct Case {
  Kernel kernel = {};
  Entries kind = Entries::normal;
  DType type = DType::f32;
  float scale = 1;
  std::string text() const {
    return fmt::format("{} of {}, coding {}, feedback {}, gradient {} of type {}", kernel.keep,
                       kernel.of, static_cast<int>(kernel.coding),
                       static_cast<int>(kernel.feedback), static_cast<int>(kind),
                       static_cast<int>(type));
  }
};
std::vector<Case> cases() {
  constexpr Feedback feedbacks[] = {Feedback::conserving, Feedback::printed, Feedback::literal};
  std::vector<Case> out;
  for (const std::int64_t n : sizes)
    for (const std::int64_t keep : {std::int64_t{0}, std::int64_t{1}, n / 100, n / 3, n})
      for (const Coding coding : codings)
        for (const Entries kind : kinds) {
          const std::size_t i = out.size();
          out.push_back({.kernel = {.kind = program::KernelKind::select,
                                    .of = n,
                                    .keep = keep,
                                    .feedback = feedbacks[i / 4 % 3 == 1 ? i % 3 : i % 2],
                                    .coding = coding},
                         .kind = kind,
                         .type = floats[i / 3 % 3],
                         .scale = i % 5 == 0 ? 1.0F : 1024.0F});
        }
  return out;
}

class CudaSparse : public CudaKernels {
 protected:
  /// Packets of as many gradients, one after the other.
  static std::vector<std::byte> packets(const Kernel& kernel, int count) {
    std::vector<std::byte> out;
    SelectScratch scratch;
    for (int i = 0; i < count; ++i) {
      const auto gradient = entries(Entries::normal, kernel.of, static_cast<unsigned>(i));
      std::vector<float> residual(gradient.size());
      std::vector<std::byte> packet(static_cast<std::size_t>(packet_room(kernel)));
      select(kernel, {}, gradient.data(), DType::f32, residual.data(), nullptr, packet.data(),
             scratch);
      out.insert(out.end(), packet.begin(), packet.end());
    }
    return out;
  }
  std::vector<float> sum(const Kernel& kernel, const std::vector<std::byte>& packets, int count,
                         std::int64_t begin, std::int64_t end, float scale) {
    const std::vector<float> before(static_cast<std::size_t>(end - begin), -1);
    const auto target = there(before.data(), 4 * before.size());
    const auto there_are = there(packets.data(), packets.size());
    const auto scale_there = there(scale);
    as_body([&] {
      gpu().scatter_add(
          kernel, {.gradients = {.loss_scale = reinterpret_cast<const float*>(scale_there.get())}},
          there_are.get(), count, begin, end, reinterpret_cast<float*>(target.get()));
    });
    std::vector<float> out(before.size());
    device_->fetch(target.get(), reinterpret_cast<std::byte*>(out.data()),
                   static_cast<std::int64_t>(4 * out.size()));
    return out;
  }
};

TEST_F(CudaSparse, SelectTheSameEntries) {
  SelectScratch scratch;
  for (const Case& one : cases()) {
    const Kernel& kernel = one.kernel;
    const auto n = static_cast<std::size_t>(kernel.of);
    std::vector<float> residual(n);
    const auto residual_there = there(residual.data(), 4 * n);
    std::vector<std::byte> packet(bytes_of(kernel) + 1);
    const auto packet_there = there(packet.data(), packet.size());
    const float infinite = std::numeric_limits<float>::infinity();
    // The residual of `printed` is cleared in step 1000. The third step is skipped.
    for (const std::int64_t step : {998, 999, 1000, 1001}) {
      const float squares = step == 1000 && one.scale != 1 ? infinite : 1;
      const auto squares_there = there(squares), scale_there = there(one.scale);
      const auto gradient =
          stored(one.type, entries(one.kind, kernel.of, static_cast<unsigned>(step)));
      const auto gradient_there = there(gradient.data(), gradient.size());
      select(kernel, {.step = step, .gradients = {.squares = &squares, .loss_scale = &one.scale}},
             gradient.data(), one.type, residual.data(), nullptr, packet.data(), scratch);
      as_body([&] {
        gpu().select(
            kernel,
            {.step = step,
             .gradients = {.squares = reinterpret_cast<const float*>(squares_there.get()),
                           .loss_scale = reinterpret_cast<const float*>(scale_there.get())}},
            gradient_there.get(), one.type, reinterpret_cast<float*>(residual_there.get()), nullptr,
            packet_there.get());
      });
      ASSERT_TRUE(back(packet_there, packet.size()) == packet)
          << one.text() << ", packet of step " << step;
      std::vector<float> residual_back(n);
      device_->fetch(residual_there.get(), reinterpret_cast<std::byte*>(residual_back.data()),
                     static_cast<std::int64_t>(4 * n));
      ASSERT_EQ(std::memcmp(residual_back.data(), residual.data(), 4 * n), 0)
          << one.text() << ", residual of step " << step;
    }
  }
}

TEST_F(CudaSparse, ScatterToTheSameSums) {
  SelectScratch scratch;
  for (const std::int64_t n : sizes)
    for (const std::int64_t keep : {std::int64_t{0}, std::int64_t{1}, n / 100, n / 3, n})
      for (const Coding coding : codings) {
        const Kernel kernel = {.of = n, .keep = keep, .coding = coding};
        constexpr int count = 3;
        const auto packed = packets(kernel, count);
        const std::int64_t half = (n + 1) / 2;  // two shards: of an odd size, one entry is padding
        for (const auto& [begin, end] :
             {std::pair{std::int64_t{0}, n}, std::pair{std::int64_t{0}, half},
              std::pair{half, 2 * half}})
          for (const float scale : {1.0F, 512.0F}) {
            std::vector<float> here(static_cast<std::size_t>(end - begin));
            scatter_add(kernel, {.gradients = {.loss_scale = &scale}}, packed.data(), count, begin,
                        end, here.data(), scratch);
            ASSERT_EQ(sum(kernel, packed, count, begin, end, scale), here)
                << keep << " of " << n << ", coding " << static_cast<int>(coding) << ", entries "
                << begin << " to " << end;
          }
      }
}

TEST_F(CudaSparse, DamagedPacketsGiveNoNumbers) {
  constexpr std::int64_t n = 100'000, keep = 1000;
  for (const Coding coding : codings) {
    const Kernel kernel = {.of = n, .keep = keep, .coding = coding};
    auto packed = packets(kernel, 2);
    // In the second packet: a place beyond the gradient, more bits than values, longer blocks.
    std::byte* const places = packed.data() + packet_room(kernel) + 4 * keep;
    std::fill_n(places, coding == Coding::delta16 ? 3 : 12, std::byte{0xff});
    EXPECT_THROW(
        {
          SelectScratch scratch;
          std::vector<float> target(n);
          scatter_add(kernel, {}, packed.data(), 2, 0, n, target.data(), scratch);
        },
        BackendError);
    const std::vector<float> target = sum(kernel, packed, 2, 0, n, 1);
    EXPECT_EQ(std::ranges::count_if(target, [](float one) { return std::isnan(one); }), n)
        << static_cast<int>(coding);
  }
}

}  // namespace
}  // namespace rehearse::runtime
