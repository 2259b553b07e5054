#include "engine/planner/shares.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace rehearse::planner {

std::vector<int> apportion(std::span<const double> weights, int total) {
  const std::size_t n = weights.size();
  assert(n > 0 && total >= static_cast<int>(n));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> quota(n);
  std::vector<int> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    quota[i] = weights[i] / sum * total;
    // The tolerance keeps integers from being rounded down.
    out[i] = std::max(1, static_cast<int>(std::floor(quota[i] + 1e-9)));
  }
  const auto owed = [&](std::size_t i) { return quota[i] - out[i]; };
  int given = std::accumulate(out.begin(), out.end(), 0);
  for (; given < total; ++given) {
    std::size_t most = 0;
    for (std::size_t i = 1; i < n; ++i)
      if (owed(i) > owed(most) + 1e-9) most = i;
    ++out[most];
  }
  for (; given > total; --given) {  // the minimum of one sample raised some shares
    std::size_t least = n;
    for (std::size_t i = 0; i < n; ++i)
      if (out[i] > 1 && (least == n || owed(i) < owed(least) - 1e-9)) least = i;
    --out[least];
  }
  return out;
}

std::vector<int> shares_of(std::span<const double> seconds_per_sample, int total) {
  std::vector<int> shares(seconds_per_sample.size(), 1);
  using Next = std::pair<double, std::size_t>;  // seconds with one more sample, replica
  std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
  for (std::size_t i = 0; i < shares.size(); ++i) queue.emplace(2 * seconds_per_sample[i], i);
  for (int left = total - static_cast<int>(shares.size()); left > 0; --left) {
    const std::size_t i = queue.top().second;
    queue.pop();
    ++shares[i];
    queue.emplace((shares[i] + 1) * seconds_per_sample[i], i);
  }
  return shares;
}

}  // namespace rehearse::planner
