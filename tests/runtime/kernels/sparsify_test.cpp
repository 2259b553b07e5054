// Compares `select` with plain sorting for every selector, form of feedback and coding. Also checks
// what conserving feedback keeps and the other forms lose, and that damaged packets are refused.
#include "runtime/kernels/sparsify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "runtime/kernels/floats.h"

namespace rehearse::runtime {
namespace {

using Floats = std::vector<float>;

Floats random_values(std::int64_t n, unsigned seed, double exponent = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats out(static_cast<std::size_t>(n));
  for (float& x : out) {
    const float z = normal(random);
    x = std::copysign(std::pow(std::fabs(z), static_cast<float>(exponent)), z);
  }
  return out;
}

void scatter(const program::Kernel& kernel, const SelectStep& step,
             const std::vector<std::byte>& packets, std::int64_t count, std::int64_t begin,
             std::int64_t end, Floats& target) {
  SelectScratch scratch;
  scatter_add(kernel, step, packets.data(), count, begin, end, target.data(), scratch);
}

struct Taken {
  std::int64_t count = 0;
  std::vector<std::byte> packet = {};
  Floats dense = {};  // the packet, added to zeros
};
Taken take(const program::Kernel& kernel, const Floats& gradient, Floats& residual,
           std::int64_t step = 0, float* threshold = nullptr) {
  const SelectStep now{.step = step, .seed = 3};
  SelectScratch scratch;
  Taken out;
  out.packet.assign(static_cast<std::size_t>(packet_room(kernel)), std::byte{0xAA});
  out.count = select(kernel, now, gradient.data(), program::DType::f32, residual.data(), threshold,
                     out.packet.data(), scratch);
  out.dense.resize(gradient.size());
  scatter(kernel, now, out.packet, 1, 0, kernel.of, out.dense);
  return out;
}

/// The indices of the k largest by sorting; of equal magnitudes the lower index comes first.
std::vector<std::size_t> largest(const Floats& v, std::int64_t k) {
  std::vector<std::size_t> order(v.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::fabs(v[a]) > std::fabs(v[b]); });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

/// Eq. 4 and 5 (Sun 2026) entry by entry. `e` becomes e(t + 1); returns what is sent.
Floats by_definition(program::Feedback form, const Floats& g, Floats& e, std::int64_t k,
                     std::int64_t step) {
  if (form == program::Feedback::printed && step > 0 && step % 1000 == 0) e.assign(e.size(), 0);
  Floats v = g;
  for (std::size_t i = 0; i < g.size(); ++i)
    if (form != program::Feedback::literal) v[i] = g[i] + e[i];
  Floats sent(g.size());
  for (const std::size_t i : largest(v, k)) sent[i] = v[i];
  const float beta = form == program::Feedback::conserving ? 1.0F : 0.9F;
  for (std::size_t i = 0; i < g.size(); ++i) e[i] = (g[i] + beta * e[i]) - sent[i];
  return sent;
}

TEST(Select, TopKIsExactForEveryFormCodingAndSize) {
  // Sizes too small and large enough for a sample, heavy tails, ties and zeros.
  for (const std::int64_t n : {1, 15, 16, 17, 1000, 4097, 400'001})
    for (const double part : {0.0, 0.01, 0.1, 0.3, 1.0})
      for (const program::Feedback form :
           {program::Feedback::conserving, program::Feedback::printed, program::Feedback::literal})
        for (const int shape : {0, 1, 2, 3}) {
          // Saves time: at this size only parts 0.1 and 0.3 use the sample.
          if (n > 100'000 && (shape == 1 || part == 0.01 || part == 1)) continue;
          const program::Coding coding = static_cast<program::Coding>((n + shape) % 3);
          const program::Kernel kernel{
              .kind = program::KernelKind::select,
              .of = n,
              .keep = static_cast<std::int64_t>(std::ceil(part * static_cast<double>(n))),
              .feedback = form,
              .coding = coding};
          Floats residual = random_values(n, 1), expected = residual;
          Floats gradient = random_values(n, 2, shape == 1 ? 4 : 1);
          if (shape == 2)  // many equal magnitudes
            for (float& x : gradient) x = std::round(x);
          if (shape == 2) residual = expected = Floats(gradient.size());
          if (shape == 3)  // sorted, the largest last: candidates fill up and are cut
            std::sort(gradient.begin(), gradient.end(),
                      [](float a, float b) { return std::fabs(a) < std::fabs(b); });
          SCOPED_TRACE(testing::Message() << n << " x " << part << ' ' << name_of(form) << ' '
                                          << name_of(coding) << " shape " << shape);
          for (std::int64_t step = 0; step < 2; ++step) {
            const Taken taken = take(kernel, gradient, residual, step);
            ASSERT_EQ(taken.count, kernel.keep);
            ASSERT_EQ(taken.dense, by_definition(form, gradient, expected, kernel.keep, step));
            ASSERT_EQ(residual, expected);
          }
        }
}

TEST(Select, EqualMagnitudesGoToTheLowerIndex) {
  const Floats gradient = {1, -2, 2, -2, 2, 0.5F};
  Floats residual(6);
  const Taken taken = take({.of = 6, .keep = 3}, gradient, residual);
  EXPECT_EQ(taken.dense, (Floats{0, -2, 2, -2, 0, 0}));
  EXPECT_EQ(residual, (Floats{1, 0, 0, 0, 2, 0.5F}));
  Floats zeros(100'000), none(100'000);
  EXPECT_EQ(take({.of = 100'000, .keep = 100}, zeros, none).count, 100);
}

TEST(Select, ReadsSixteenBitsAndUnscales) {
  const Floats values = {1.5F, -96, 24, 3};
  std::vector<std::uint16_t> half, brain;
  for (const float v : values) half.push_back(to_f16(v)), brain.push_back(to_bf16(v));
  for (const auto& [type, bits] :
       {std::pair{program::DType::f16, half}, std::pair{program::DType::bf16, brain}}) {
    const program::Kernel kernel{.of = 4, .keep = 2};
    Floats residual = {0, 0, 0, 1}, dense(4);
    std::vector<std::byte> packet(static_cast<std::size_t>(packet_room(kernel)));
    SelectScratch scratch;
    const float eight = 8;
    const SelectStep scaled{.gradients = {.loss_scale = &eight}};
    select(kernel, scaled, bits.data(), type, residual.data(), nullptr, packet.data(), scratch);
    // Sent: 96 / 8 and 24 / 8. The residual is unscaled too: 1.5 / 8 and 3 / 8 + 1.
    scatter(kernel, {}, packet, 1, 0, 4, dense);
    EXPECT_EQ(dense, (Floats{0, -12, 3, 0}));
    EXPECT_EQ(residual, (Floats{0.1875F, 0, 0, 1.375F}));
    scatter(kernel, scaled, packet, 1, 0, 4, dense);
    EXPECT_EQ(dense, (Floats{0, -96, 24, 0}));
  }
}

TEST(Select, ConservingLosesNothingTheOtherFormsDo) {
  // After every step: sum of what was sent + residual = sum of all gradients.
  constexpr std::int64_t n = 500;
  for (const program::Selector selector :
       {program::Selector::top_k, program::Selector::random_k, program::Selector::threshold})
    for (const program::Feedback form :
         {program::Feedback::conserving, program::Feedback::printed, program::Feedback::literal}) {
      const program::Kernel kernel{.of = n, .keep = 50, .selector = selector, .feedback = form};
      std::vector<double> sent(n), all(n);
      Floats residual(n);
      float threshold[2] = {};
      double worst = 0;
      for (int step = 0; step < 30; ++step) {
        const Floats gradient = random_values(n, 100U + static_cast<unsigned>(step));
        const Taken taken = take(kernel, gradient, residual, step, threshold);
        for (std::size_t i = 0; i < n; ++i) {
          sent[i] += taken.dense[i], all[i] += gradient[i];
          worst = std::max(worst, std::fabs(sent[i] + residual[i] - all[i]));
        }
      }
      SCOPED_TRACE(testing::Message() << name_of(selector) << ' ' << name_of(form));
      if (form == program::Feedback::conserving)
        EXPECT_LT(worst, 1e-4);
      else
        EXPECT_GT(worst, 0.5);
    }
}

TEST(Select, PrintedLeaksATenthAndForgetsEveryThousandSteps) {
  // The first entry is always chosen, the second never, so its residual follows e' = g + 0.9 e: 1,
  // 1.9, 2.71 for g = 1. Step 1000 starts from 0 again.
  const program::Kernel kernel{.of = 2, .keep = 1, .feedback = program::Feedback::printed};
  Floats residual(2);
  for (const float expected : {1.0F, 1.9F, 2.71F}) {
    take(kernel, {100, 1}, residual, 5);
    EXPECT_NEAR(residual[1], expected, 1e-6);
  }
  take(kernel, {100, 1}, residual, 1000);
  EXPECT_EQ(residual[1], 1);
  // An entry that is sent loses a tenth of its residual: e' = g - (g + e) + 0.9 e = -0.1 e.
  Floats owed = {0, 10};
  take(kernel, {1, 5}, owed, 1);
  EXPECT_NEAR(owed[1], -1, 1e-6);
}

TEST(Select, RandomKDrawsAlikeOnEveryRankAndAnewEachStep) {
  constexpr std::int64_t n = 10'000, keep = 1000;
  const auto chosen = [&](unsigned rank, std::int64_t step, Id draw,
                          program::Coding coding = program::Coding::index32) {
    const program::Kernel kernel{.of = n,
                                 .keep = keep,
                                 .selector = program::Selector::random_k,
                                 .coding = coding,
                                 .draw = draw};
    Floats gradient = random_values(n, rank), residual(n);
    const Taken taken = take(kernel, gradient, residual, step);
    for (std::size_t i = 0; i < n; ++i)  // what is not sent stays
      EXPECT_EQ(taken.dense[i] + residual[i], gradient[i]);
    EXPECT_EQ(taken.count, keep);
    std::set<std::size_t> out;
    for (std::size_t i = 0; i < n; ++i)
      if (taken.dense[i] != 0) out.insert(i);
    return out;
  };
  const auto first = chosen(1, 4, 9);
  EXPECT_EQ(first.size(), keep);
  EXPECT_EQ(first, chosen(2, 4, 9));
  EXPECT_EQ(first, chosen(2, 4, 9, program::Coding::values));  // drawn again by the reader
  EXPECT_NE(first, chosen(1, 5, 9));
  EXPECT_NE(first, chosen(1, 4, 8));
  // Evenly spread: about 100 entries in each tenth (standard deviation 9).
  for (std::size_t tenth = 0; tenth < 10; ++tenth) {
    const auto in =
        std::distance(first.lower_bound(tenth * 1000), first.lower_bound(tenth * 1000 + 1000));
    EXPECT_NEAR(static_cast<double>(in), 100, 45);
  }
}

TEST(Select, ThresholdStaysNearTheWantedNumber) {
  constexpr std::int64_t n = 50'000;
  for (const double part : {0.01, 0.1, 0.3})
    for (const double tail : {1.0, 3.0})
      for (const program::Feedback form :
           {program::Feedback::conserving, program::Feedback::printed,
            program::Feedback::literal}) {
        SCOPED_TRACE(testing::Message() << part << " tail " << tail << ' ' << name_of(form));
        const auto keep = static_cast<std::int64_t>(part * n);
        const program::Kernel kernel{
            .of = n, .keep = keep, .selector = program::Selector::threshold, .feedback = form};
        Floats residual(n);
        float state[2] = {};
        double late = 0;
        for (int step = 0; step < 40; ++step) {
          const Floats gradient = random_values(n, static_cast<unsigned>(step), tail);
          const Taken taken = take(kernel, gradient, residual, step, state);
          EXPECT_EQ(state[1], static_cast<float>(taken.count));
          EXPECT_LE(taken.count, 2 * keep) << step;
          if (step == 0) {
            EXPECT_EQ(taken.count, keep);  // the first step uses top-k
          }
          if (step >= 20) late += static_cast<double>(taken.count) / static_cast<double>(keep) / 20;
        }
        // The residual still grows, so the threshold lags a little.
        EXPECT_NEAR(late, 1, 0.3);
      }
}

TEST(Select, ThresholdTakesExactlyWhatReachesIt) {
  constexpr std::int64_t n = 5000;
  const program::Kernel kernel{.of = n, .keep = 1500, .selector = program::Selector::threshold};
  const Floats gradient = random_values(n, 1);
  Floats residual(n), expected(n);
  float state[2] = {0.9F, 0};
  const Taken taken = take(kernel, gradient, residual, 1, state);
  for (std::size_t i = 0; i < n; ++i)
    if (std::fabs(gradient[i]) >= 0.9F) expected[i] = gradient[i];
  EXPECT_EQ(taken.dense, expected);
  // When more entries reach the threshold than fit, top-k takes the exact number and finds a new
  // threshold.
  state[0] = 1e-6F;
  residual.assign(n, 0);
  Floats again(n);
  EXPECT_EQ(take(kernel, gradient, residual, 2, state).dense,
            by_definition(program::Feedback::conserving, gradient, again, 1500, 2));
  EXPECT_EQ(residual, again);
  EXPECT_GT(state[0], 0.5F);
}

TEST(Packets, BytesAreTheFormulas) {
  for (const std::int64_t n : {1, 7, 8, 9, 65'535, 65'536, 65'537, 200'000})
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, n / 2, n}) {
      const std::int64_t blocks = n <= 65'536 ? 1 : n <= 131'072 ? 2 : 4;
      EXPECT_EQ(packet_bytes(n, k, program::Coding::index32), 8 * k);
      EXPECT_EQ(packet_bytes(n, k, program::Coding::bitmap), 4 * k + n / 8 + (n % 8 != 0));
      EXPECT_EQ(packet_bytes(n, k, program::Coding::delta16), 6 * k + 4 * blocks);
      EXPECT_EQ(packet_bytes(n, k, program::Coding::values), 4 * k);
    }
}

TEST(Packets, NothingIsSaidInAsManyBytes) {
  for (const program::Coding coding :
       {program::Coding::index32, program::Coding::bitmap, program::Coding::delta16})
    for (const program::Selector selector :
         {program::Selector::top_k, program::Selector::threshold}) {
      const program::Kernel kernel{
          .of = 100'000, .keep = 70'000, .selector = selector, .coding = coding};
      std::vector<std::byte> packet(static_cast<std::size_t>(packet_room(kernel)), std::byte{0xFF});
      const float overflow = HUGE_VALF;
      const Floats gradient(100'000, 1);
      Floats residual(100'000, 0.5F), threshold = {0.25F, 7};
      SelectScratch scratch;
      EXPECT_EQ(
          select(kernel, {.gradients = {.squares = &overflow}}, gradient.data(),
                 program::DType::f32, residual.data(), threshold.data(), packet.data(), scratch),
          0);
      EXPECT_EQ(residual, Floats(100'000, 0.5F));
      EXPECT_EQ(threshold, (Floats{0.25F, 7}));
      Floats target(100'000, 1);
      scatter(kernel, {}, packet, 1, 0, kernel.of, target);
      EXPECT_EQ(target, Floats(100'000));
    }
}

TEST(Packets, ScatterIntoAPart) {
  for (const program::Coding coding :
       {program::Coding::index32, program::Coding::bitmap, program::Coding::delta16}) {
    const program::Kernel kernel{.of = 10, .keep = 3, .coding = coding};
    std::vector<std::byte> packets(static_cast<std::size_t>(2 * packet_room(kernel)));
    const std::uint32_t a[] = {0, 4, 9}, b[] = {4, 5, 6};
    const float x[] = {1, 2, 3}, y[] = {10, 20, 30};
    write_packet(kernel, x, a, 3, packets.data());
    write_packet(kernel, y, b, 3, packets.data() + packet_room(kernel));
    Floats whole(12, 7), part(6, 7);
    scatter(kernel, {}, packets, 2, 0, 12, whole);
    EXPECT_EQ(whole, (Floats{1, 0, 0, 0, 12, 20, 30, 0, 0, 3, 0, 0}));
    const float two = 2;
    scatter(kernel, {.gradients = {.loss_scale = &two}}, packets, 2, 6, 12,
            part);  // the second half of 12
    EXPECT_EQ(part, (Floats{60, 0, 0, 6, 0, 0}));
  }
}

TEST(Packets, FromAPeerAreNotTrusted) {
  const auto refused = [](const program::Kernel& kernel, const std::vector<std::byte>& packet) {
    Floats target(static_cast<std::size_t>(kernel.of));
    EXPECT_THROW(scatter(kernel, {}, packet, 1, 0, kernel.of, target), BackendError)
        << name_of(kernel.coding);
  };
  const float values[] = {1, 2};
  const std::uint32_t indices[] = {3, 9};
  for (const program::Coding coding :
       {program::Coding::index32, program::Coding::bitmap, program::Coding::delta16}) {
    const program::Kernel good{.of = 10, .keep = 2, .coding = coding};
    std::vector<std::byte> packet(static_cast<std::size_t>(packet_room(good)));
    write_packet(good, values, indices, 2, packet.data());
    if (coding == program::Coding::index32) {
      for (const std::uint32_t wild : {10U, 0xffffffffU}) {
        std::memcpy(packet.data() + 8, &wild, 4);
        refused(good, packet);
      }
    } else if (coding == program::Coding::bitmap) {
      auto more = packet, fewer = packet, beyond = packet;
      more[8] |= std::byte{0xF0};
      refused(good, more);
      fewer[9] = {};
      refused(good, fewer);
      beyond[9] = std::byte{0x80};  // entry 15 in the place of entry 9
      refused(good, beyond);
    } else {
      auto more = packet, fewer = packet, beyond = packet;
      more[8] = std::byte{3};
      refused(good, more);
      fewer[8] = std::byte{1};
      refused(good, fewer);
      beyond[14] = std::byte{10};
      refused(good, beyond);
    }
  }
  const program::Kernel counted{.of = 10, .keep = 2, .selector = program::Selector::threshold};
  std::vector<std::byte> packet(static_cast<std::size_t>(packet_room(counted)));
  const std::uint32_t five = 5;  // there is room for 4
  std::memcpy(packet.data(), &five, 4);
  refused(counted, packet);
}

}  // namespace
}  // namespace rehearse::runtime
