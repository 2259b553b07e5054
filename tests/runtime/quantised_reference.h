// Quantised exchanges from their definition (engine/program/program.h, Compressor), entry by entry
// and without packets, to compare kernels and runs with.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/base/numbers/random.h"
#include "engine/link/link.h"
#include "engine/program/program.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::runtime {

/// The scale of a block with entries v[begin, end).
inline float scale_of(const program::Kernel& kernel, const std::vector<float>& v, std::size_t begin,
                      std::size_t end) {
  const double levels = std::exp2(kernel.bits - 1) - 1;
  double largest = 0, magnitudes = 0, squares = 0;
  bool finite = true;
  for (std::size_t i = begin; i < end; ++i) {
    largest = std::max(largest, std::fabs(double{v[i]}));
    magnitudes += std::fabs(double{v[i]});
    squares += double{v[i]} * double{v[i]};
    finite = finite && std::isfinite(v[i]);
  }
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  const auto entries = static_cast<double>(end - begin);
  if (kernel.compressor == program::Compressor::sign)
    return static_cast<float>(magnitudes / entries);
  if (kernel.compressor == program::Compressor::sign_rms)
    return static_cast<float>(std::sqrt(squares / entries));
  if (kernel.compressor == program::Compressor::vote) return 1;
  const auto scale = static_cast<float>(
      (kernel.compressor == program::Compressor::int8 ? largest : std::sqrt(squares)) / levels);
  return scale < FLT_MIN ? 0 : scale;
}

/// What an entry becomes. `place`: its number in the gradient.
inline float said_of(const program::Kernel& kernel, RandomKey key, std::int64_t place, float v,
                     float scale) {
  if (std::isnan(scale)) return scale;
  if (kernel.bits == 1) return v >= 0 ? scale : -scale;
  if (scale == 0) return 0;
  const float inverse = 1 / scale;
  if (kernel.compressor == program::Compressor::int8)
    return static_cast<float>(std::lrint(v * inverse)) * scale;
  // Rounded up if the part below the point is larger than a random number: both with 20 bits.
  const float magnitude = std::fabs(v) * inverse;
  const auto below = static_cast<std::int64_t>(std::floor(double{magnitude} * 0x1p20));
  const std::int64_t draw = random_bits(key, static_cast<std::uint32_t>(place)) >> 12;
  const auto levels = static_cast<std::int64_t>(std::exp2(kernel.bits - 1) - 1);
  const std::int64_t level = std::min(levels, (below + draw) / (std::int64_t{1} << 20));
  return static_cast<float>(v < 0 ? -level : level) * scale;
}

/// What the packets of entries [begin, begin + v.size()) of a gradient say, in parts of kernel.keep
/// entries. Entries from kernel.of on are 0.
inline std::vector<float> said(const program::Kernel& kernel, RandomKey key, std::int64_t begin,
                               const std::vector<float>& v) {
  std::vector<float> out(v.size());
  const auto keep = static_cast<std::size_t>(kernel.keep),
             block = static_cast<std::size_t>(kernel.block),
             end = static_cast<std::size_t>(std::clamp<std::int64_t>(
                 kernel.of - begin, 0, static_cast<std::int64_t>(v.size())));
  for (std::size_t part = 0; part < end; part += keep)
    for (std::size_t from = part; from < std::min(end, part + keep); from += block) {
      const std::size_t to = std::min({end, part + keep, from + block});
      const float scale = scale_of(kernel, v, from, to);
      for (std::size_t i = from; i < to; ++i)
        out[i] = said_of(kernel, key, begin + static_cast<std::int64_t>(i), v[i], scale);
    }
  return out;
}

/// The same for v = g + e. `e` becomes what is not said, or 0 where NaN is said.
inline std::vector<float> said_with_feedback(const program::Kernel& kernel, RandomKey key,
                                             std::int64_t begin, const std::vector<float>& g,
                                             std::vector<float>& e) {
  std::vector<float> v = g;
  for (std::size_t i = 0; i < g.size(); ++i) v[i] = e[i] + g[i];
  std::vector<float> out = said(kernel, key, begin, v);
  for (std::size_t i = 0; i < g.size(); ++i)
    e[i] =
        std::isnan(out[i]) || begin + static_cast<std::int64_t>(i) >= kernel.of ? 0 : v[i] - out[i];
  return out;
}

/// The quantised sum of one bucket over data-parallel workers, from its definition.
struct QuantisedSum {
  program::Kernel kernel = {};
  std::vector<tensors::ParamPiece> pieces = {};  // of the bucket
  bool feedback = false;
  program::When when = {};  // in other steps the bucket is summed whole
  std::uint64_t seed = 0;
  std::vector<std::vector<float>> owed = {}, owed_of_sum = {};  // by worker

  /// `by_worker`: their gradients, kernel.of entries each.
  std::vector<float> operator()(std::int64_t step, std::vector<std::vector<float>> by_worker) {
    const std::size_t n = by_worker.size(), part = static_cast<std::size_t>(kernel.keep);
    owed.resize(n, std::vector<float>(n * part));
    owed_of_sum.resize(n, std::vector<float>(part));
    const auto code = [&](std::size_t worker, bool of_sum, const std::vector<float>& g) {
      const RandomKey key =
          random_key(seed, Draw::quantise, static_cast<std::uint64_t>(step),
                     (std::uint64_t{pieces.front().group} << 32) + 2 * worker + of_sum);
      const auto begin = static_cast<std::int64_t>(of_sum ? worker * part : 0);
      return feedback
                 ? said_with_feedback(kernel, key, begin, g, (of_sum ? owed_of_sum : owed)[worker])
                 : said(kernel, key, begin, g);
    };
    for (std::size_t w = 0; w < n; ++w) {
      by_worker[w].resize(n * part);
      by_worker[w] = code(w, false, by_worker[w]);
    }
    std::vector<float> out;
    for (std::size_t owner = 0; owner < n; ++owner) {
      std::vector<float> sum(part);
      for (std::size_t i = 0; i < part; ++i) {
        sum[i] = by_worker[0][owner * part + i];
        for (std::size_t w = 1; w < n; ++w) sum[i] += by_worker[w][owner * part + i];
      }
      for (const float one : code(owner, true, sum)) out.push_back(one);
    }
    out.resize(static_cast<std::size_t>(kernel.of));
    return out;
  }
};

/// The buckets that rank 0 sums in this way.
inline std::vector<QuantisedSum> quantised_sums(const link::LinkedProgram& linked,
                                                const model::ModelSpec& model, std::uint64_t seed) {
  const tensors::RankMap map = tensors::map_tensors(linked, model)[0];
  const program::Role& role = linked.program.roles[linked.role_of[0]];
  std::vector<QuantisedSum> out;
  for (const program::Op& op : role.ops) {
    const auto* kernel = std::get_if<program::Kernel>(&op.work);
    if (kernel == nullptr || kernel->kind != program::KernelKind::quantise) continue;
    const program::Ref& source = *find(op, program::Slot::source);
    if (source.layout.shard != 0) continue;  // of the sum
    out.push_back({.kernel = *kernel,
                   .pieces = map.storages[role.views[source.view].storage].pieces,
                   .feedback = find(op, program::Slot::residual) != nullptr,
                   .when = op.when,
                   .seed = seed});
  }
  return out;
}

}  // namespace rehearse::runtime
