// Compares quantise and dequantise with their definition, entry by entry: odd sizes, empty parts,
// padding, numbers that are not finite. Also that qsgd has the gradient as its mean.
#include "runtime/kernels/quantise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "engine/base/names.h"
#include "engine/program/packets.h"
#include "runtime/kernels/floats.h"
#include "tests/runtime/quantised_reference.h"

namespace rehearse::runtime {
namespace {

using program::Compressor;
using program::Kernel;
using Floats = std::vector<float>;

Floats random_values(std::int64_t n, unsigned seed) {
  std::mt19937 engine(seed);
  Floats values(static_cast<std::size_t>(n));
  for (float& v : values) {
    v = static_cast<float>(engine() >> 8) * 0x1p-23F - 1;
    v *= v * v;  // many small ones
  }
  return values;
}

std::vector<std::uint32_t> bits_of(const Floats& values) {
  std::vector<std::uint32_t> out;
  for (const float v : values) out.push_back(std::bit_cast<std::uint32_t>(v));
  return out;
}

struct Coded {
  std::vector<std::byte> packets = {};
  Floats said = {};
};

/// The packets of whole parts, with bytes around them that must not change.
Coded code(const Kernel& kernel, RandomKey key, const Floats& gradient, Floats* residual,
           std::int64_t begin = 0) {
  const auto parts = static_cast<std::int64_t>(gradient.size()) / kernel.keep;
  const auto bytes = static_cast<std::size_t>(parts * quantised_bytes(kernel));
  Coded out;
  out.packets.assign(bytes + 2, std::byte{0x5a});
  quantise(kernel, key, gradient.data(), program::DType::f32, begin, parts,
           residual == nullptr ? nullptr : residual->data(), out.packets.data() + 1);
  EXPECT_EQ(out.packets.front(), std::byte{0x5a});
  EXPECT_EQ(out.packets.back(), std::byte{0x5a});
  out.packets.erase(out.packets.begin());
  out.packets.pop_back();
  out.said.assign(gradient.size(), 7);
  if (begin == 0)
    dequantise(kernel, out.packets.data(), parts, out.said.data());
  else
    dequantise_sum(kernel, out.packets.data(), 1, begin, out.said.data());
  return out;
}

struct Coder {
  Compressor compressor = Compressor::int8;
  int bits = 8;
};
const Coder coders[] = {{Compressor::int8, 8},       {Compressor::stochastic, 2},
                        {Compressor::stochastic, 4}, {Compressor::stochastic, 8},
                        {Compressor::sign, 1},       {Compressor::sign_rms, 1}};

Kernel kernel_of(const Coder& coder, std::int64_t of, std::int64_t keep, std::int64_t block) {
  return {.kind = program::KernelKind::quantise,
          .of = of,
          .keep = keep,
          .compressor = coder.compressor,
          .bits = coder.bits,
          .block = block};
}

// Of ranks that vote, the sign of the sum is that of most of them; of a tie, it is +.
TEST(Quantise, SumsOfVotesHaveTheSignOfMost) {
  constexpr std::int64_t n = 1000;
  const Kernel kernel = kernel_of({Compressor::vote, 1}, n, n, n);
  EXPECT_EQ(quantised_bytes(kernel), n / 8);
  for (const int voters : {2, 3, 4}) {
    std::vector<std::byte> packets;
    Floats votes(n);
    for (int voter = 0; voter < voters; ++voter) {
      const Floats gradient = random_values(n, static_cast<unsigned>(voter + 1));
      const std::vector<std::byte> one = code(kernel, {}, gradient, nullptr).packets;
      packets.insert(packets.end(), one.begin(), one.end());
      for (std::int64_t i = 0; i < n; ++i) votes[i] += gradient[i] >= 0 ? 1.0F : -1.0F;
    }
    Floats sum(n);
    dequantise_sum(kernel, packets.data(), voters, 0, sum.data());
    EXPECT_EQ(sum, votes);
    const Floats said = code(kernel, {}, sum, nullptr).said;
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(said[i], votes[i] >= 0 ? 1.0F : -1.0F) << i;
  }
}

TEST(Quantise, SaysWhatTheDefinitionSays) {
  std::vector<Coder> all(std::begin(coders), std::end(coders));
  all.push_back({Compressor::vote, 1});
  for (const Coder& coder : all)
    for (const std::int64_t keep : {1, 3, 8, 255, 256, 257, 1000, 4096, 4097, 10'007})
      for (const std::int64_t block :
           {std::int64_t{8}, std::int64_t{256}, std::int64_t{4104}, keep})
        for (const std::int64_t parts : {1, 3})
          // Padding: none; a little; so much that the last part is empty.
          for (const std::int64_t missing : {std::int64_t{0}, keep / 2, keep}) {
            if (missing >= parts * keep) continue;
            const Kernel kernel = kernel_of(coder, parts * keep - missing, keep, block);
            SCOPED_TRACE(testing::Message()
                         << name_of(coder.compressor) << coder.bits << " keep " << keep << " block "
                         << block << " parts " << parts << " missing " << missing);
            const RandomKey key = random_key(3, Draw::quantise, 5, 7);
            Floats gradient = random_values(parts * keep, 1);
            std::fill(gradient.end() - missing, gradient.end(), 0.0F);
            ASSERT_EQ(bits_of(code(kernel, key, gradient, nullptr).said),
                      bits_of(said(kernel, key, 0, gradient)));
            Floats residual = random_values(parts * keep, 2), expected = residual;
            for (int step = 0; step < 2; ++step) {
              const Floats want = said_with_feedback(kernel, key, 0, gradient, expected);
              ASSERT_EQ(bits_of(code(kernel, key, gradient, &residual).said), bits_of(want));
              ASSERT_EQ(bits_of(residual), bits_of(expected));
            }
          }
}

TEST(Quantise, SaysTheSameOfAPartByItself) {
  // A rank codes its part of a sum with the entries' numbers in the whole gradient.
  for (const Coder& coder : coders) {
    const Kernel kernel = kernel_of(coder, 2500, 1000, 512);
    const RandomKey key = random_key(1, Draw::quantise, 2, 3);
    const Floats gradient = random_values(1000, 4);
    for (const std::int64_t begin : {1000, 2000}) {
      Floats residual = random_values(1000, 5), expected = residual;
      const Floats want = said_with_feedback(kernel, key, begin, gradient, expected);
      EXPECT_EQ(bits_of(code(kernel, key, gradient, &residual, begin).said), bits_of(want));
      EXPECT_EQ(bits_of(residual), bits_of(expected));
    }
  }
}

TEST(Quantise, PacketsHaveTheirBytes) {
  const auto bytes = [](const Coder& coder, std::int64_t keep, std::int64_t block) {
    return quantised_bytes(kernel_of(coder, keep, keep, block));
  };
  EXPECT_EQ(bytes({Compressor::int8, 8}, 1000, 256), 4 * 4 + 1000);
  EXPECT_EQ(bytes({Compressor::stochastic, 4}, 1001, 512), 2 * 4 + 501);
  EXPECT_EQ(bytes({Compressor::stochastic, 2}, 1001, 512), 2 * 4 + 251);
  EXPECT_EQ(bytes({Compressor::sign, 1}, 1001, 1001), 4 + 126);
  EXPECT_EQ(bytes({Compressor::sign, 1}, 1, 8), 4 + 1);
  // Scales first, then codes, entry 0 in the lowest bits.
  Floats values = {3, -1, 0.5F, -0.5F, 2, 0, -4, 1, 127};
  const Coded eight = code(kernel_of({Compressor::int8, 8}, 9, 9, 16), {}, values, nullptr);
  float scale = 0;
  std::memcpy(&scale, eight.packets.data(), 4);
  EXPECT_EQ(scale, 1);
  EXPECT_EQ(std::to_integer<std::uint8_t>(eight.packets[4]), 3);
  EXPECT_EQ(std::to_integer<std::uint8_t>(eight.packets[5]), 255);
  EXPECT_EQ(std::to_integer<std::uint8_t>(eight.packets[6]), 0);  // a half goes to even
  EXPECT_EQ(std::to_integer<std::uint8_t>(eight.packets[12]), 127);
  const Coded one = code(kernel_of({Compressor::sign, 1}, 9, 9, 9), {}, values, nullptr);
  std::memcpy(&scale, one.packets.data(), 4);
  EXPECT_FLOAT_EQ(scale, 139.0F / 9);
  EXPECT_EQ(std::to_integer<std::uint8_t>(one.packets[4]), 0b10110101);
  EXPECT_EQ(std::to_integer<std::uint8_t>(one.packets[5]), 1);
}

TEST(Quantise, SumsPacketsInTheirOrder) {
  for (const Coder& coder : coders) {
    const Kernel kernel = kernel_of(coder, 4990, 1000, 264);
    const auto bytes = static_cast<std::size_t>(quantised_bytes(kernel));
    std::vector<std::byte> packets(5 * bytes);
    Floats want(1000);
    for (std::int64_t rank = 0; rank < 5; ++rank) {
      const Floats part = random_values(1000, 10 + static_cast<unsigned>(rank));
      const RandomKey key = random_key(1, Draw::quantise, 0, static_cast<std::uint64_t>(rank));
      quantise(kernel, key, part.data(), program::DType::f32, 4000, 1, nullptr,
               packets.data() + static_cast<std::size_t>(rank) * bytes);
      const Floats one = said(kernel, key, 4000, part);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] = rank == 0 ? one[i] : want[i] + one[i];
    }
    Floats sum(1000, 7);
    dequantise_sum(kernel, packets.data(), 5, 4000, sum.data());
    EXPECT_EQ(bits_of(sum), bits_of(want)) << name_of(coder.compressor) << coder.bits;
    EXPECT_EQ(Floats(sum.begin() + 990, sum.end()), Floats(10));  // entries from 4990 on: padding
  }
}

TEST(Quantise, ReadsSixteenBits) {
  const Floats values = random_values(1000, 6);
  std::vector<std::uint16_t> brain(values.size()), half(values.size());
  store_f32(values.data(), 1000, brain.data(), program::DType::bf16, 0);
  store_f32(values.data(), 1000, half.data(), program::DType::f16, 0);
  for (const auto& [type, bits] :
       {std::pair{program::DType::bf16, brain}, std::pair{program::DType::f16, half}})
    for (const Coder& coder : coders) {
      const Kernel kernel = kernel_of(coder, 1000, 500, 256);
      Floats as_floats(1000), residual(1000), expected(1000), got(1000);
      std::copy_n(as_f32(bits.data(), type, 0, 1000, as_floats.data()), 1000, as_floats.data());
      std::vector<std::byte> packets(static_cast<std::size_t>(2 * quantised_bytes(kernel)));
      quantise(kernel, {}, bits.data(), type, 0, 2, residual.data(), packets.data());
      dequantise(kernel, packets.data(), 2, got.data());
      EXPECT_EQ(bits_of(got), bits_of(said_with_feedback(kernel, {}, 0, as_floats, expected)));
      EXPECT_EQ(bits_of(residual), bits_of(expected));
    }
}

TEST(Quantise, ZerosStayZeros) {
  for (const Coder& coder : coders) {
    const Kernel kernel = kernel_of(coder, 600, 300, 256);
    const Floats zeros(600);
    Floats residual(600);
    EXPECT_EQ(bits_of(code(kernel, {}, zeros, &residual).said), bits_of(zeros));
    EXPECT_EQ(bits_of(residual), bits_of(zeros));
  }
}

TEST(Quantise, NumbersTooSmallForAScaleStayInTheResidual) {
  for (const Coder& coder : coders) {
    if (coder.bits == 1) continue;  // it divides by nothing
    const Floats tiny(300, 1e-41F);
    Floats residual(300);
    EXPECT_EQ(code(kernel_of(coder, 300, 300, 512), {}, tiny, &residual).said, Floats(300));
    EXPECT_EQ(residual, tiny);
  }
}

TEST(Quantise, ABlockThatIsNotFiniteIsSaidToBeSoAndOwesNothing) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()})
    for (const Coder& coder : coders) {
      const Kernel kernel = kernel_of(coder, 600, 300, 256);
      Floats gradient = random_values(600, 7), residual = random_values(600, 8);
      Floats expected = residual;
      gradient[299] = bad;  // in the second block of the first part, of 44 entries
      const Floats got = code(kernel, {}, gradient, &residual).said;
      const Floats want = said_with_feedback(kernel, {}, 0, gradient, expected);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(std::isnan(got[i]), 256 <= i && i < 300) << i;
        if (std::isnan(got[i]))
          ASSERT_EQ(residual[i], 0) << i;
        else
          ASSERT_EQ(got[i], want[i]) << i;
      }
      EXPECT_EQ(bits_of(residual), bits_of(expected));
    }
}

TEST(Quantise, IsAsCoarseAsItsBits) {
  const Floats values = random_values(4096, 9);
  for (const Coder& coder : coders) {
    const Kernel kernel = kernel_of(coder, 4096, 4096, 512);
    const Coded coded = code(kernel, {}, values, nullptr);
    for (std::size_t i = 0; i < values.size(); ++i) {
      float scale = 0;
      std::memcpy(&scale, coded.packets.data() + i / 512 * 4, 4);
      const float error = std::fabs(coded.said[i] - values[i]);
      if (coder.compressor == Compressor::int8)
        ASSERT_LE(error, 0.5001F * scale);
      else if (coder.compressor == Compressor::stochastic)
        ASSERT_LE(error, 1.0001F * scale);
      else
        ASSERT_EQ(std::fabs(coded.said[i]), scale);
    }
  }
}

// Alistarh et al. 2017, lemma 3.1: the mean over draws is the gradient.
TEST(Quantise, QsgdHasTheGradientAsItsMean) {
  constexpr int draws = 4000;
  const Floats values = random_values(1000, 11);
  for (const int bits : {2, 4, 8}) {
    const Kernel kernel = kernel_of({Compressor::stochastic, bits}, 1000, 1000, 512);
    std::vector<double> sum(values.size());
    for (int draw = 0; draw < draws; ++draw) {
      const RandomKey key = random_key(1, Draw::quantise, static_cast<std::uint64_t>(draw), 0);
      const Floats got = code(kernel, key, values, nullptr).said;
      for (std::size_t i = 0; i < got.size(); ++i) sum[i] += got[i];
    }
    double off = 0;  // sum of squared deviations in standard errors
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float scale = scale_of(kernel, values, i / 512 * 512, i < 512 ? 512 : 1000);
      // A number between two levels deviates by p (1 - p) of their distance, squared.
      const double part =
          std::fabs(double{values[i]}) / scale - std::floor(std::fabs(double{values[i]}) / scale);
      const double variance = part * (1 - part) * scale * scale;
      const double mean = sum[i] / draws;
      const double error = std::sqrt(variance / draws) + 1e-6 * scale;
      // 6 draws: numbers that are rarely rounded up have longer tails than a normal distribution.
      EXPECT_LT(std::fabs(mean - values[i]), 5 * error + 6 * scale / draws)
          << bits << " bits, entry " << i;
      off += (mean - values[i]) * (mean - values[i]) / (error * error);
    }
    // A bias of half a standard error on every entry would make this 1.25.
    EXPECT_NEAR(off / static_cast<double>(values.size()), 1, 0.15) << bits;
  }
}

// The mean of |v| is the factor of the signs with the least squared error (Karimireddy et al. 2019,
// section 3), which leaves less for the next step than 1-bit Adam's root mean square.
TEST(Quantise, TheScaleOfSignsIsTheBest) {
  const Floats values = random_values(1000, 12);
  const Coded coded = code(kernel_of({Compressor::sign, 1}, 1000, 1000, 1000), {}, values, nullptr);
  double squares = 0;
  for (const float v : values) squares += double{v} * v;
  const auto missed = [&](double factor) {
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double one = values[i] - factor * coded.said[i];
      sum += one * one;
    }
    return sum;
  };
  EXPECT_LT(missed(1), missed(1.001));
  EXPECT_LT(missed(1), missed(0.999));
  EXPECT_LT(missed(1), 0.9 * missed(std::sqrt(squares / 1000) / std::fabs(coded.said[0])));
}

}  // namespace
}  // namespace rehearse::runtime
