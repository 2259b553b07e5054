#include "engine/random.h"

#include <cassert>
#include <cmath>
#include <cstddef>

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

double normal_quantile(double p) {
  assert(p > 0 && p < 1);
  auto rational = [](double x, const auto& num, const auto& den) {
    double a = 0, b = 0;
    for (double c : num) a = a * x + c;
    for (double c : den) b = b * x + c;
    return a / b;
  };
  static constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,
                                 -2.759285104469687e+02, 1.383577518672690e+02,
                                 -3.066479806614716e+01, 2.506628277459239e+00};
  static constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02,
                                 -1.556989798598866e+02, 6.680131188771972e+01,
                                 -1.328068155288572e+01, 1.0};
  static constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01,
                                 -2.400758277161838e+00, -2.549732539343734e+00,
                                 4.374664141464968e+00,  2.938163982698783e+00};
  static constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01,
                                 2.445134137142996e+00, 3.754408661907416e+00, 1.0};
  double z = 0;
  if (p < 0.02425) {
    z = rational(std::sqrt(-2 * std::log(p)), c, d);
  } else if (p > 1 - 0.02425) {
    z = -rational(std::sqrt(-2 * std::log(1 - p)), c, d);
  } else {
    const double q = p - 0.5;
    z = q * rational(q * q, a, b);
  }
  const double error = 0.5 * std::erfc(-z / std::sqrt(2.0)) - p;
  return z - error * std::sqrt(2 * 3.14159265358979323846) * std::exp(z * z / 2);
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
