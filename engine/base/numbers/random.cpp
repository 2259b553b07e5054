#include "engine/base/numbers/random.h"

#include <algorithm>
#include <boost/circular_buffer.hpp>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "engine/base/numbers/quantiles.h"

namespace rehearse {
namespace {

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

std::shared_ptr<const std::vector<float>> table_of(double sigma) {
  std::vector<double> factors = normal_table();
  for (double& z : factors) z = std::exp(sigma * z);
  const double sum = std::accumulate(factors.begin(), factors.end(), 0.0);
  const double scale = static_cast<double>(factors.size()) / sum;
  auto table = std::make_shared<std::vector<float>>(factors.size());
  std::ranges::transform(factors, table->begin(),
                         [&](double factor) { return static_cast<float>(scale * factor); });
  return table;
}

/// The same, kept for the next call: all seeds of a run draw with one sigma.
std::shared_ptr<const std::vector<float>> kept_table_of(double sigma) {
  struct Kept {
    double sigma;
    std::shared_ptr<const std::vector<float>> table;
  };
  thread_local boost::circular_buffer<Kept> kept(4);
  const auto found = std::ranges::find(kept, sigma, &Kept::sigma);
  if (found != kept.end()) return found->table;
  kept.push_back({sigma, table_of(sigma)});
  return kept.back().table;
}

}  // namespace

LogNormal::LogNormal(double sigma) : sigma_(sigma), table_(kept_table_of(sigma)) {}

void LogNormal::fill(RandomKey key, std::span<const Id> ranks, std::span<double> out) const {
  assert(ranks.size() == out.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) out[i] = (*this)(key, ranks[i]);
}

}  // namespace rehearse
