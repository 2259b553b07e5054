#include "engine/execution/measure/stopping.h"

#include <limits>
#include <numeric>

#include "engine/execution/measure/metrics.h"

namespace rehearse::execution {

double half_width95(std::span<const double> step_times) {
  constexpr std::size_t least = 3, most = 10;  // batches
  std::size_t each = 2;                        // steps
  while (step_times.size() > most * each) each *= 2;
  if (step_times.size() < least * each || step_times.size() % each != 0)
    return std::numeric_limits<double>::infinity();
  std::vector<double> means;
  for (std::size_t at = 0; at < step_times.size(); at += each) {
    const auto batch = step_times.subspan(at, each);
    means.push_back(std::accumulate(batch.begin(), batch.end(), 0.0) / static_cast<double>(each));
  }
  return spread(std::move(means)).ci95;
}

}  // namespace rehearse::execution
