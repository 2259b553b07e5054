// Initial weights from counter-based random numbers: element i of a tensor is a function of (seed,
// tensor name, i), where i is its index in the full tensor. Normal numbers come in pairs, by the
// Box-Muller transform of two hashed uniform numbers.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string_view>

#include "engine/base/fnv.h"
#include "engine/base/numbers/random.h"
#include "models/block.h"

namespace rehearse::models {
namespace {

RandomKey tensor_key(std::uint64_t seed, std::string_view name) {
  Fnv hash(seed * 0x9e3779b97f4a7c15ULL);
  hash.bytes(name);
  std::uint64_t h = hash.value();
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
  h ^= h >> 31;
  return {static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(h >> 32)};
}

/// Number `index` of a tensor's standard normals. Every 2^31 pairs get a key of their own, because
/// a tensor may have more elements than a 32-bit counter has values.
float normal(RandomKey key, std::int64_t index) {
  const auto pair = static_cast<std::uint64_t>(index) / 2;
  const auto low = static_cast<std::uint32_t>(pair & 0x7fffffffU);
  key.a ^= static_cast<std::uint32_t>(pair >> 31) * 0x9e3779b9U;
  const float u = (static_cast<float>(random_bits(key, 2 * low) >> 8) + 0.5F) * 0x1p-24F;
  const float v = static_cast<float>(random_bits(key, 2 * low + 1) >> 8) * 0x1p-24F;
  const float radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi_v<float> * v;
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

/// Whether the group belongs to the embedding or the head. A tensor of such a group that is split
/// along dimension 0 has one row for each vocabulary entry.
bool looks_up(const model::ModelSpec& model, Id group) {
  for (const model::Segment& s : {model.segments.front(), model.segments.back()}) {
    for (const Id id : s.groups) {
      if (id == group) return true;
    }
  }
  return false;
}

}  // namespace

void initialise(const model::ModelSpec& model, Id group, int tp, int tp_rank, std::uint64_t seed,
                const at::Tensor& flat) {
  const auto& tensors = model.groups[group].tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const model::TensorSpec& spec = tensors[t];
    at::Tensor target = tensor_view(model, group, t, tp, flat);
    if (spec.init != model::Init::normal) {
      target.fill_(spec.init == model::Init::ones ? 1 : 0);
      continue;
    }
    // The shard consists of `runs` stretches of the full tensor, `length` long and `stride` apart.
    // Example: a (2, 4) tensor split along dimension 1 over tp = 2. Tensor rank 1 has the x of
    // ..xx..xx: runs 2, stride 4, length 2, start 2.
    std::int64_t runs = 1, length = 1, stride = 1;
    for (std::size_t i = 0; i < spec.shape.size(); ++i) {
      (static_cast<int>(i) < spec.split ? runs : stride) *= spec.shape[i];
    }
    length = stride / (spec.split >= 0 ? tp : 1);
    const std::int64_t start = spec.split >= 0 ? tp_rank * length : 0;
    const RandomKey key = tensor_key(seed, spec.name);
    const auto deviation = static_cast<float>(spec.std);
    const bool vocabulary = spec.split == 0 && looks_up(model, group);
    const std::int64_t real = vocabulary ? std::int64_t{model.vocab} * model.hidden
                                         : std::numeric_limits<std::int64_t>::max();
    at::Tensor values = at::empty({runs * length}, at::kFloat);
    float* const out = values.data_ptr<float>();
    at::parallel_for(0, runs * length, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t index = i / length * stride + start + i % length;
        out[i] = index < real ? deviation * normal(key, index) : 0.0F;
      }
    });
    target.copy_(values.view(target.sizes()));
  }
}

}  // namespace rehearse::models
