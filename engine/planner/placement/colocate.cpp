#include "engine/planner/placement/colocate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

namespace rehearse::planner {
namespace {

constexpr std::size_t shortest = 4, longest = 6;  // layers between two seams

/// The end of each run, so that the sum of `bytes` at the seams is smallest (dynamic programming).
std::vector<std::size_t> cheapest_seams(std::span<const double> bytes, std::size_t runs) {
  const std::size_t n = bytes.size();
  const std::size_t least = std::min(shortest, n / runs);
  const std::size_t most = std::max(longest, (n + runs - 1) / runs);
  constexpr double infinite = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(runs + 1, std::vector<double>(n + 1, infinite));
  std::vector<std::vector<std::size_t>> length(runs + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = 0;
  for (std::size_t r = 1; r <= runs; ++r)
    for (std::size_t end = 1; end <= n; ++end)
      for (std::size_t own = least; own <= std::min(most, end); ++own) {
        const double seam = end < n ? bytes[end - 1] : 0;
        const double sum = best[r - 1][end - own] + seam;
        if (sum < best[r][end]) best[r][end] = sum, length[r][end] = own;
      }
  std::vector<std::size_t> ends(runs);
  for (std::size_t r = runs, end = n; r > 0; end -= length[r--][end]) ends[r - 1] = end;
  return ends;
}

}  // namespace

std::vector<Id> colocate(std::span<const double> bytes, std::span<const Id> node,
                         const Distances& d) {
  std::map<Id, std::vector<Id>> by_node;
  for (Id p = 0; p < node.size(); ++p) by_node[node[p]].push_back(p);
  std::vector<std::vector<Id>> nodes;
  for (auto& [id, places] : by_node) nodes.push_back(std::move(places));
  const auto spread = [&](const std::vector<Id>& places) {
    double sum = 0;
    for (Id a : places)
      for (Id b : places) sum += d(a, b);
    const auto pairs = static_cast<double>(places.size() * (places.size() - 1));
    return pairs > 0 ? sum / pairs : 0;
  };
  std::stable_sort(nodes.begin(), nodes.end(),
                   [&](const auto& a, const auto& b) { return spread(a) < spread(b); });

  const std::size_t n = bytes.size();
  std::size_t runs = (n + longest - 1) / longest;
  if (runs * shortest > n) runs = std::max<std::size_t>(1, n / shortest);
  runs = std::min(runs, nodes.size());
  const std::vector<std::size_t> ends = cheapest_seams(bytes, runs);
  std::vector<std::size_t> order(runs);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto begin_of = [&](std::size_t run) { return run == 0 ? 0 : ends[run - 1]; };
  const auto inside = [&](std::size_t run) {
    return std::accumulate(bytes.begin() + static_cast<std::ptrdiff_t>(begin_of(run)),
                           bytes.begin() + static_cast<std::ptrdiff_t>(ends[run]) - 1, 0.0);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return inside(a) > inside(b); });
  std::vector<Id> out(n, 0);
  for (std::size_t i = 0; i < runs; ++i) {
    const std::size_t begin = begin_of(order[i]), layers = ends[order[i]] - begin;
    const std::vector<Id>& places = nodes[i];
    for (std::size_t k = 0; k < layers; ++k) out[begin + k] = places[k * places.size() / layers];
  }
  return out;
}

}  // namespace rehearse::planner
