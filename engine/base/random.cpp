#include "engine/base/random.h"

#include <cassert>
#include <cmath>
#include <cstddef>

#include "engine/base/quantiles.h"

namespace rehearse {
namespace {

constexpr std::uint64_t mix64(std::uint64_t x) {  // splitmix64's finaliser (Steele et al. 2014)
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

const std::vector<double>& normal_table() {
  static const std::vector<double> table = [] {
    const auto size = std::size_t{1} << LogNormal::table_bits;
    std::vector<double> z(size);
    for (std::size_t i = 0; i < size; ++i)
      z[i] = normal_quantile((static_cast<double>(i) + 0.5) / static_cast<double>(size));
    return z;
  }();
  return table;
}

}  // namespace

RandomKey random_key(std::uint64_t seed, Draw what, std::uint64_t step, std::uint64_t op) {
  std::uint64_t k = mix64(seed);
  k = mix64(k ^ static_cast<std::uint64_t>(what));
  k = mix64(k ^ step);
  k = mix64(k ^ op);
  return {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(k >> 32)};
}

LogNormal::LogNormal(double sigma) : sigma_(sigma) {
  const std::vector<double>& z = normal_table();
  double sum = 0;
  for (double v : z) sum += std::exp(sigma * v);
  const double scale = static_cast<double>(z.size()) / sum;
  table_.resize(z.size());
  for (std::size_t i = 0; i < z.size(); ++i)
    table_[i] = static_cast<float>(scale * std::exp(sigma * z[i]));
}

void LogNormal::fill(RandomKey key, std::span<const Id> ranks, std::span<double> out) const {
  assert(ranks.size() == out.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) out[i] = (*this)(key, ranks[i]);
}

}  // namespace rehearse
