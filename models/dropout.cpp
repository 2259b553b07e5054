// Dropout whose mask is a function of (seed, step, layer, site, sample of the global batch,
// position, hidden index). So the mask is the same on every mesh and for every number of threads,
// and it is computed again in backward rather than stored. Multiplying by it is linear, so it may
// be applied to each tp rank's partial sum. The bits are `random_bits` of
// engine/base/numbers/random.h, with one key for each row.
#include <ATen/Parallel.h>

#include <cmath>

#include "engine/base/numbers/random.h"
#include "engine/base/numbers/vectorise.h"
#include "models/by_type.h"
#include "models/layers.h"

namespace rehearse::models {
namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64 (Steele, Lea and Flood 2014)
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// The part of the key that all rows of a call share.
std::uint64_t call_key(const DropoutMask& mask) {
  const std::uint64_t place =
      (static_cast<std::uint64_t>(mask.layer + 1) << 8) | static_cast<std::uint64_t>(mask.site);
  return mix(mix(mix(mask.batch.seed) ^ static_cast<std::uint64_t>(mask.batch.step)) ^ place);
}

RandomKey row_key(std::uint64_t call, std::int64_t sample, std::int64_t position) {
  const std::uint64_t key =
      mix(mix(call ^ static_cast<std::uint64_t>(sample)) ^ static_cast<std::uint64_t>(position));
  return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

std::uint32_t threshold(double probability) {
  return static_cast<std::uint32_t>(std::lround(probability * 0x1p24)) << 8;
}
float scale(double probability) { return static_cast<float>(1 / (1 - probability)); }

REHEARSE_CLONES void fill_row(float* row, std::int64_t n, RandomKey key, std::uint32_t drop_below,
                              float keep) {
  for (std::int64_t j = 0; j < n; ++j) {
    row[j] = random_bits(key, static_cast<std::uint32_t>(j)) >= drop_below ? keep : 0.0F;
  }
}

template <class T>
void apply_row(T* x, const T* residual, const float* row, std::int64_t n) {
  if (residual == nullptr) {
    for (std::int64_t j = 0; j < n; ++j) x[j] = static_cast<T>(static_cast<float>(x[j]) * row[j]);
    return;
  }
  for (std::int64_t j = 0; j < n; ++j) {
    x[j] = static_cast<T>(static_cast<float>(x[j]) * row[j] + static_cast<float>(residual[j]));
  }
}

template <class T>
void drop_rows(at::Tensor& x, const DropoutMask& mask, const at::Tensor& residual) {
  const std::int64_t seq = x.size(1), hidden = x.size(2);
  T* const data = x.data_ptr<T>();
  const T* const add = residual.defined() ? residual.const_data_ptr<T>() : nullptr;
  const std::uint64_t call = call_key(mask);
  const std::int64_t first = mask.batch.first_sample;
  at::parallel_for(0, x.size(0) * seq, 16, [&](std::int64_t begin, std::int64_t end) {
    float* const row = row_room(hidden);
    for (std::int64_t i = begin; i < end; ++i) {
      fill_row(row, hidden, row_key(call, first + i / seq, mask.batch.position(i % seq)),
               threshold(mask.probability), scale(mask.probability));
      apply_row(data + i * hidden, add == nullptr ? nullptr : add + i * hidden, row, hidden);
    }
  });
}

}  // namespace

at::Tensor mask_tensor(at::IntArrayRef shape, const DropoutMask& mask, at::Device device) {
  const std::int64_t samples = shape[0], seq = shape[1], hidden = shape[2];
  const std::uint64_t call = call_key(mask);
  at::Tensor keys = at::empty({samples, seq, 2}, at::kLong);
  auto* const key = keys.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < samples * seq; ++i) {
    const RandomKey k =
        row_key(call, mask.batch.first_sample + i / seq, mask.batch.position(i % seq));
    key[2 * i] = k.a;
    key[2 * i + 1] = k.b;
  }
  keys = keys.to(device);
  const std::int64_t low = 0xffffffff;
  const auto multiply = [&](const at::Tensor& x, std::int64_t by) {
    return x.mul(by).bitwise_and_(low);  // a 64-bit product that overflows has the right low bits
  };
  const auto bits = [&](at::Tensor x) {
    x = multiply(x.bitwise_xor(x.bitwise_right_shift(16)), 0x21f0aaad);
    x = multiply(x.bitwise_xor(x.bitwise_right_shift(15)), 0x735a2d97);
    return x.bitwise_xor(x.bitwise_right_shift(15));
  };
  at::Tensor x = multiply(at::arange(hidden, at::device(device).dtype(at::kLong)), 0x9e3779b9);
  x = x.add(keys.select(2, 0).unsqueeze(2)).bitwise_and_(low);
  x = bits(bits(x).bitwise_xor_(keys.select(2, 1).unsqueeze(2)));
  return x.ge(static_cast<std::int64_t>(threshold(mask.probability)))
      .to(at::kFloat)
      .mul_(scale(mask.probability));
}

void drop(at::Tensor& x, const DropoutMask& mask, const at::Tensor& residual) {
  if (!x.is_cpu()) {
    x.mul_(mask_tensor(x.sizes(), mask, x.device()).to(x.scalar_type()));
    if (residual.defined()) x.add_(residual);
    return;
  }
  const at::Tensor add = residual.defined() ? residual.contiguous() : residual;
  by_type(x, [&]<class T>(T) { drop_rows<T>(x, mask, add); });
}

}  // namespace rehearse::models
