#include "engine/execution/stopping.h"

#include <limits>
#include <numeric>

#include "engine/execution/metrics.h"

namespace rehearse::execution {

double half_width95(std::span<const double> step_times) {
  constexpr std::size_t batches = 5;
  if (step_times.empty() || step_times.size() % (2 * batches) != 0)
    return std::numeric_limits<double>::infinity();
  const std::size_t each = step_times.size() / batches;
  std::vector<double> means;
  for (std::size_t at = 0; at < step_times.size(); at += each) {
    const auto batch = step_times.subspan(at, each);
    means.push_back(std::accumulate(batch.begin(), batch.end(), 0.0) / static_cast<double>(each));
  }
  return spread(std::move(means)).ci95;
}

}  // namespace rehearse::execution
