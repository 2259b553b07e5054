// Compares quantise and dequantise of the CUDA plug-in with those of runtime/kernels: the same
// bytes for all compressors, types and divisions. See cuda_kernels_test.cpp.
#include <fmt/format.h>

#include <limits>
#include <string>

#include "engine/program/packets.h"
#include "runtime/kernels/low_rank.h"
#include "tests/runtime/cuda/cuda_kernels.h"

namespace rehearse::runtime {
namespace {

using program::Compressor;
using program::Kernel;

/// A gradient in parts; the last one has padding.
struct Case {
  Kernel kernel = {};
  std::int64_t parts = 1, begin = 0;
  DType type = DType::f32;
  bool residual = true;
  std::int64_t entries() const { return parts * kernel.keep; }
  std::size_t bytes() const { return static_cast<std::size_t>(parts * quantised_bytes(kernel)); }
  std::string text() const {
    return fmt::format("compressor {}, {} bits, {} parts of {}, blocks of {}, type {}, residual {}",
                       static_cast<int>(kernel.compressor), kernel.bits, parts, kernel.keep,
                       kernel.block, static_cast<int>(type), residual);
  }
};

std::vector<Case> cases() {
  constexpr std::pair<Compressor, int> codes[] = {
      {Compressor::int8, 8},       {Compressor::stochastic, 2}, {Compressor::stochastic, 4},
      {Compressor::stochastic, 8}, {Compressor::sign, 1},       {Compressor::sign_rms, 1},
      {Compressor::vote, 1}};
  std::vector<Case> out;
  for (const auto& [compressor, bits] : codes)
    for (const std::int64_t keep : {1, 255, 4099, 10'000})
      for (const std::int64_t block :
           {std::int64_t{8}, std::int64_t{256}, std::int64_t{8192}, keep})
        for (const std::int64_t parts : {1, 3}) {
          const std::size_t i = out.size();
          out.push_back({.kernel = {.kind = program::KernelKind::quantise,
                                    .of = parts * keep - keep / 3,
                                    .keep = keep,
                                    .compressor = compressor,
                                    .bits = bits,
                                    .block = block},
                         .parts = parts,
                         .begin = i % 4 == 3 ? keep : 0,
                         .type = floats[i % 3],
                         .residual = i % 5 != 0});
        }
  return out;
}

class CudaCodes : public CudaKernels {
 protected:
  std::vector<float> floats_of(const std::shared_ptr<std::byte>& memory, std::size_t count) {
    std::vector<float> out(count);
    device_->fetch(memory.get(), reinterpret_cast<std::byte*>(out.data()),
                   static_cast<std::int64_t>(4 * count));
    return out;
  }
};

TEST_F(CudaCodes, AreTheSame) {
  for (const Case& one : cases()) {
    const auto n = static_cast<std::size_t>(one.entries());
    std::vector<float> residual(n);
    const auto residual_there = there(residual.data(), 4 * n);
    std::vector<std::byte> packets(one.bytes());
    const auto packets_there = there(packets.data(), packets.size());
    for (const unsigned step : {1U, 2U, 3U}) {
      auto gradient = numbers(one.type, one.entries(), step);
      if (step == 2) {  // a block of zeros, or an entry that is not finite
        std::vector<float> values(n);
        if (n > 300) values[290] = std::numeric_limits<float>::infinity();
        gradient = stored(one.type, values);
      }
      const auto gradient_there = there(gradient.data(), gradient.size());
      const RandomKey key = random_key(7, Draw::quantise, step, 3);
      quantise(one.kernel, key, gradient.data(), one.type, one.begin, one.parts,
               one.residual ? residual.data() : nullptr, packets.data());
      as_body([&] {
        gpu().quantise(one.kernel, key, gradient_there.get(), one.type, one.begin, one.parts,
                       one.residual ? reinterpret_cast<float*>(residual_there.get()) : nullptr,
                       packets_there.get());
      });
      ASSERT_TRUE(back(packets_there, packets.size()) == packets)
          << one.text() << ", packets of step " << step;
      const auto left = floats_of(residual_there, n);
      ASSERT_EQ(std::memcmp(left.data(), residual.data(), 4 * n), 0)
          << one.text() << ", residual of step " << step;
    }
  }
}

TEST_F(CudaCodes, AreReadTheSame) {
  for (const Case& one : cases()) {
    const auto n = static_cast<std::size_t>(one.entries());
    const auto gradient = numbers(DType::f32, one.entries(), 5);
    std::vector<std::byte> packets(one.bytes());
    quantise(one.kernel, {}, gradient.data(), DType::f32, 0, one.parts, nullptr, packets.data());
    const auto packets_there = there(packets.data(), packets.size());
    std::vector<float> here(n, -1);
    const auto target = there(here.data(), 4 * n);
    dequantise(one.kernel, packets.data(), one.parts, here.data());
    as_body([&] {
      gpu().dequantise(one.kernel, packets_there.get(), one.parts,
                       reinterpret_cast<float*>(target.get()));
    });
    ASSERT_EQ(floats_of(target, n), here) << one.text();
    // The same packets as those of ranks, for the last part of a gradient.
    const std::int64_t begin = (one.parts - 1) * one.kernel.keep;
    here.resize(static_cast<std::size_t>(one.kernel.keep));
    dequantise_sum(one.kernel, packets.data(), one.parts, begin, here.data());
    as_body([&] {
      gpu().dequantise_sum(one.kernel, packets_there.get(), one.parts, begin,
                           reinterpret_cast<float*>(target.get()));
    });
    ASSERT_EQ(floats_of(target, here.size()), here) << one.text();
  }
}

TEST_F(CudaCodes, MomentaBlendTheSame) {
  constexpr std::int64_t count = 5001;
  const auto moment = numbers(DType::f32, count, 1);
  auto target = numbers(DType::f32, count, 2);
  const auto moment_there = there(moment.data(), moment.size());
  const auto target_there = there(target.data(), target.size());
  blend_momentum(0.9, 0.25, reinterpret_cast<const float*>(moment.data()),
                 reinterpret_cast<float*>(target.data()), count);
  as_body([&] {
    gpu().blend_momentum(0.9, 0.25, reinterpret_cast<const float*>(moment_there.get()),
                         reinterpret_cast<float*>(target_there.get()), count);
  });
  EXPECT_TRUE(back(target_there, target.size()) == target);
}

}  // namespace
}  // namespace rehearse::runtime
