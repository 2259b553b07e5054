#include "engine/costs/network/rings.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace rehearse::costs {
namespace {

constexpr std::size_t most_members = 16;      // of a search; a machine with cables has 8 or 16
constexpr std::int64_t most_steps = 200'000;  // of a search; it then keeps the best set so far

/// Finds sets of cycles by depth-first search. Each cycle begins at member 0 and goes first where
/// the most cables are left.
class Search {
 public:
  Search(std::vector<std::vector<int>> left, int goal) : left_(std::move(left)), goal_(goal) {}

  std::vector<std::vector<int>> run() {
    begin();
    return best_;
  }

 private:
  /// Adds one more cycle. Returns whether the goal is reached.
  bool begin() {
    if (rings_.size() > best_.size()) best_ = rings_;
    if (static_cast<int>(best_.size()) == goal_) return true;
    way_.assign(1, 0);
    used_ = 1;
    return extend();
  }
  bool extend() {
    if (++steps_ > most_steps) return true;
    const int here = way_.back();
    const int n = static_cast<int>(left_.size());
    if (static_cast<int>(way_.size()) == n) {
      if (left_[at(here)][0] == 0) return false;
      --left_[at(here)][0];
      rings_.push_back(way_);
      const std::vector<int> way = way_;
      const std::uint32_t used = used_;
      if (begin()) return true;
      way_ = way, used_ = used;
      rings_.pop_back();
      ++left_[at(here)][0];
      return false;
    }
    std::vector<int> next;
    for (int v = 0; v < n; ++v)
      if (!(used_ >> v & 1) && left_[at(here)][at(v)] > 0) next.push_back(v);
    std::stable_sort(next.begin(), next.end(),
                     [&](int a, int b) { return left_[at(here)][at(a)] > left_[at(here)][at(b)]; });
    for (const int v : next) {
      --left_[at(here)][at(v)];
      way_.push_back(v), used_ |= 1U << v;
      if (extend()) return true;
      way_.pop_back(), used_ &= ~(1U << v);
      ++left_[at(here)][at(v)];
    }
    return false;
  }
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  std::vector<std::vector<int>> left_;  // [from][to]: cables that no ring uses yet
  int goal_;
  std::vector<int> way_ = {};
  std::uint32_t used_ = 0;  // members on `way_`
  std::vector<std::vector<int>> rings_ = {}, best_ = {};
  std::int64_t steps_ = 0;
};

}  // namespace

std::vector<std::vector<int>> rings_of(const cluster::Cluster& cluster,
                                       std::span<const Id> devices) {
  const std::size_t n = devices.size();
  if (!cluster.has_cables() || n < 3 || n > most_members) return {};
  double narrowest = 0;
  for (const Id a : devices)
    for (const Id b : devices)
      if (const double wide = cluster.cable(a, b).value; wide > 0)
        narrowest = narrowest == 0 ? wide : std::min(narrowest, wide);
  if (narrowest == 0) return {};
  std::vector<std::vector<int>> cables(n, std::vector<int>(n, 0));
  int goal = 1 << 10;
  for (std::size_t a = 0; a < n; ++a) {
    int leaving = 0;
    for (std::size_t b = 0; b < n; ++b) {
      cables[a][b] =
          static_cast<int>(std::lround(cluster.cable(devices[a], devices[b]).value / narrowest));
      leaving += cables[a][b];
    }
    goal = std::min(goal, leaving);
  }
  return Search(std::move(cables), goal).run();
}

namespace {

/// The sizes of the block of the torus that the devices are, in its order; empty: they are none.
std::vector<int> block_of(std::span<const int> sizes, std::span<const Id> devices) {
  const auto coordinate = [&](Id device, std::size_t d) {
    for (std::size_t before = 0; before < d; ++before) device /= static_cast<Id>(sizes[before]);
    return device % static_cast<Id>(sizes[d]);
  };
  std::vector<std::vector<Id>> used(sizes.size());  // [dimension]: coordinates, ascending
  std::size_t members = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    for (const Id device : devices) used[d].push_back(coordinate(device, d));
    std::sort(used[d].begin(), used[d].end());
    used[d].erase(std::unique(used[d].begin(), used[d].end()), used[d].end());
    members *= used[d].size();
  }
  if (members != devices.size()) return {};
  for (std::size_t i = 0; i < devices.size(); ++i) {
    std::size_t rest = i;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (coordinate(devices[i], d) != used[d][rest % used[d].size()]) return {};
      rest /= used[d].size();
    }
  }
  std::vector<int> block;
  for (const auto& coordinates : used) block.push_back(static_cast<int>(coordinates.size()));
  return block;
}

}  // namespace

Wiring wiring_of(const cluster::Cluster& cluster, std::span<const Id> devices) {
  if (!cluster.torus().empty()) return {.torus = block_of(cluster.torus(), devices)};
  return {.rings = rings_of(cluster, devices)};
}

}  // namespace rehearse::costs
