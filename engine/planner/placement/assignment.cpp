// Costs are compared with a tolerance, so that rounding errors of sums do not decide between equal
// costs.
#include "engine/planner/placement/assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace rehearse::planner {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr std::size_t all_starts = 64;  // with more devices, greedy_assignment tries only one start
constexpr double tolerance = 1e-12;     // relative to a cost

bool below(double a, double b) { return a < b * (1 - tolerance); }

/// A rank's traffic with another rank: bytes sent and received.
struct Partner {
  Id rank = 0;
  double out = 0, in = 0;
};
using Partners = std::vector<std::vector<Partner>>;

Partners partners_of(std::span<const RankTraffic> traffic, std::size_t ranks) {
  Partners out(ranks);
  const auto add = [&](Id rank, Id other, double sent, double received) {
    for (Partner& p : out[rank])
      if (p.rank == other) {
        p.out += sent, p.in += received;
        return;
      }
    out[rank].push_back({other, sent, received});
  };
  for (const RankTraffic& t : traffic) {
    if (t.from == t.to) continue;
    add(t.from, t.to, t.bytes, 0);
    add(t.to, t.from, 0, t.bytes);
  }
  return out;
}

/// Cost of a rank's traffic if the rank is on `device`, with the ranks that are placed. Rank
/// `other` (none: no rank) counts as placed on device `instead` (none: as not placed).
double traffic_cost(const std::vector<Partner>& partners, Id device, const Assignment& at,
                    const Distances& d, Id other = none, Id instead = none) {
  double sum = 0;
  for (const Partner& p : partners) {
    const Id there = p.rank == other ? instead : at[p.rank];
    if (there == none) continue;
    sum += p.out * d(device, there) + p.in * d(there, device);
  }
  return sum;
}

double weight(const Partner& p) { return p.out + p.in; }

/// The order in which ranks are placed: first the rank with the most traffic, then always the rank
/// with the most traffic to the ranks placed before it.
std::vector<Id> placing_order(const Partners& partners) {
  const std::size_t n = partners.size();
  std::vector<double> all(n, 0.0), bound(n, 0.0);
  for (std::size_t r = 0; r < n; ++r)
    for (const Partner& p : partners[r]) all[r] += weight(p);
  std::vector<Id> order;
  std::vector<bool> placed(n, false);
  while (order.size() < n) {
    std::size_t best = n;
    for (std::size_t r = 0; r < n; ++r)
      if (!placed[r] &&
          (best == n || std::pair(bound[r], all[r]) > std::pair(bound[best], all[best])))
        best = r;
    placed[best] = true;
    order.push_back(static_cast<Id>(best));
    for (const Partner& p : partners[best]) bound[p.rank] += weight(p);
  }
  return order;
}

/// The most central device: its sum of distances to the `ranks` nearest devices is smallest.
Id centre(const Distances& d, std::size_t ranks) {
  Id best = 0;
  double best_sum = infinite;
  for (Id i = 0; i < d.size(); ++i) {
    std::vector<double> near;
    for (Id j = 0; j < d.size(); ++j) near.push_back(d(i, j) + d(j, i));
    std::sort(near.begin(), near.end());
    const double sum =
        std::accumulate(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(ranks), 0.0);
    if (below(sum, best_sum)) best = i, best_sum = sum;
  }
  return best;
}

/// Greedy assignment with the first rank on device `start`.
Assignment greedy_from(Id start, const Partners& partners, const std::vector<Id>& order,
                       const Distances& d) {
  Assignment at(order.size(), none);
  std::vector<bool> taken(d.size(), false);
  for (Id rank : order) {
    Id best = rank == order[0] ? start : none;
    double best_cost = infinite;
    for (Id device = 0; device < d.size() && rank != order[0]; ++device) {
      if (taken[device]) continue;
      const double cost = traffic_cost(partners[rank], device, at, d);
      if (best == none || below(cost, best_cost)) best = device, best_cost = cost;
    }
    at[rank] = best, taken[best] = true;
  }
  return at;
}

/// Branch and bound: depth d places rank order[d].
struct BranchAndBound {
  const Partners& partners;
  const std::vector<Id>& order;
  const Distances& d;
  double nearest = infinite;      // smallest distance between two devices
  std::vector<double> rest = {};  // by depth: bytes of traffic that has no cost yet
  Assignment at = {}, best = {};  // by rank
  std::vector<bool> taken = {};
  double best_cost = infinite;

  void bounds() {
    for (std::size_t i = 0; i < d.size(); ++i)
      for (std::size_t j = 0; j < d.size(); ++j)
        if (i != j) nearest = std::min(nearest, d(i, j));
    if (d.size() < 2) nearest = 0;
    rest.assign(order.size() + 1, 0.0);
    std::vector<bool> placed_earlier(order.size(), true);
    for (std::size_t depth = order.size(); depth-- > 0;) {
      placed_earlier[order[depth]] = false;
      rest[depth] = rest[depth + 1];
      for (const Partner& p : partners[order[depth]])
        if (placed_earlier[p.rank]) rest[depth] += weight(p);
    }
  }

  void place(std::size_t depth, double cost) {
    if (!below(cost + rest[depth] * nearest, best_cost)) return;
    if (depth == order.size()) {
      best = at, best_cost = cost;
      return;
    }
    const Id rank = order[depth];
    for (Id device = 0; device < d.size(); ++device) {
      if (taken[device]) continue;
      const double more = traffic_cost(partners[rank], device, at, d);
      at[rank] = device, taken[device] = true;
      place(depth + 1, cost + more);
      at[rank] = none, taken[device] = false;
    }
  }
};

}  // namespace

double cost_of(std::span<const RankTraffic> traffic, const Assignment& assignment,
               const Distances& d) {
  double sum = 0;
  for (const RankTraffic& t : traffic) sum += t.bytes * d(assignment[t.from], assignment[t.to]);
  return sum;
}

Assignment greedy_assignment(std::span<const RankTraffic> traffic, std::size_t ranks,
                             const Distances& d) {
  const Partners partners = partners_of(traffic, ranks);
  const std::vector<Id> order = placing_order(partners);
  std::vector<Id> starts(d.size());
  std::iota(starts.begin(), starts.end(), Id{0});
  if (d.size() > all_starts) starts = {centre(d, ranks)};
  Assignment best;
  double best_cost = infinite;
  for (Id start : starts) {
    Assignment at = greedy_from(start, partners, order, d);
    const double cost = cost_of(traffic, at, d);
    if (below(cost, best_cost)) best = std::move(at), best_cost = cost;
  }
  return best;
}

Assignment local_search(std::span<const RankTraffic> traffic, Assignment at, const Distances& d,
                        std::span<const Id> alike) {
  const Partners partners = partners_of(traffic, at.size());
  std::vector<Id> rank_on(d.size(), none);
  for (Id r = 0; r < at.size(); ++r) rank_on[at[r]] = r;
  bool better = true;
  while (better) {
    better = false;
    for (Id r = 0; r < at.size(); ++r)
      for (Id device = 0; device < d.size(); ++device) {
        const Id here = at[r], other = rank_on[device];
        if (device == here || (other != none && other < r)) continue;
        if (!alike.empty() && alike[here] != alike[device]) continue;
        double before = traffic_cost(partners[r], here, at, d);
        double after = traffic_cost(partners[r], device, at, d, other, here);
        if (other != none) {  // traffic between the two ranks is counted above
          before += traffic_cost(partners[other], device, at, d, r, none);
          after += traffic_cost(partners[other], here, at, d, r, none);
        }
        if (!below(after, before)) continue;
        at[r] = device, rank_on[device] = r, rank_on[here] = other;
        if (other != none) at[other] = here;
        better = true;
      }
  }
  return at;
}

std::optional<Assignment> exact_assignment(std::span<const RankTraffic> traffic, std::size_t ranks,
                                           const Distances& d) {
  if (d.size() > exact_limit) return std::nullopt;
  const Partners partners = partners_of(traffic, ranks);
  const std::vector<Id> order = placing_order(partners);
  BranchAndBound search{partners, order, d};
  search.bounds();
  search.at.assign(ranks, none);
  search.taken.assign(d.size(), false);
  search.best = local_search(traffic, greedy_assignment(traffic, ranks, d), d);
  search.best_cost = cost_of(traffic, search.best, d);
  search.place(0, 0);
  return search.best;
}

}  // namespace rehearse::planner
