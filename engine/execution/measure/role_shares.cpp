#include "engine/execution/measure/role_shares.h"

#include <algorithm>

#include "engine/base/numbers/vectorise.h"
#include "engine/execution/explain/work_parts.h"
#include "engine/execution/trace/chrome_trace.h"

namespace rehearse::execution {
namespace {

// Eight partial sums: a fixed order of additions, so the result is the same on every machine.
REHEARSE_CLONES double total(const double* start, const double* end, std::size_t n) {
  double lanes[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (std::size_t j = 0; j < 8; ++j) lanes[j] += end[i + j] - start[i + j];
  for (; i < n; ++i) lanes[0] += end[i] - start[i];
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void Power::add(const cluster::DeviceKind& kind, double ranks) {
  idle += ranks * kind.idle.value;
  working.push_back(kind.busy.value - kind.idle.value);
}

void Power::squeeze() {
  if (std::all_of(working.begin(), working.end(), [&](double w) { return w == working[0]; }))
    working.resize(1);
}

double Power::work(Id first, std::span<const double> starts, std::span<const double> ends,
                   double seconds) const {
  if (working.size() == 1) return working[0] * seconds;
  double joules = 0;
  for (std::size_t i = 0; i < starts.size(); ++i)
    joules += working[first + i] * (ends[i] - starts[i]);
  return joules;
}

bool RoleShares::build(const link::OrderedProgram& linked, Id r, const cluster::Cluster& cluster,
                       const costs::Costs& costs, std::size_t steps, const Fold* fold) {
  const program::Role& role = linked.program.roles[r];
  compute_lane = compute_lane_of(role);
  for (const program::Op& op : role.ops)
    kind.push_back(communicates(op.work)     ? communication
                   : compute_lane == none    ? serving
                   : op.lane == compute_lane ? compute
                                             : other);
  if (fold != nullptr) sizes = fold->sizes(r);
  places = fold != nullptr ? sizes.size() : role.ranks.size();
  bool known = true;
  for (Id place = 0; place < places; ++place) {
    const Id rank = role.ranks[fold != nullptr ? fold->representative[r][place] : place];
    const cluster::DeviceKind& device = cluster.kind_of(costs.rank_to_device()[rank]);
    power.add(device, ranks_at(place));
    known = known && device.busy.value > 0;
  }
  power.squeeze();
  shares.resize(steps);
  // 8 MB of gaps in all: hundreds per rank for small world sizes, 32 per rank for 16,384 ranks.
  const std::size_t capacity = std::clamp<std::size_t>(
      (std::size_t{1} << 19) / static_cast<std::size_t>(linked.program.world_size), 16, 4096);
  if (compute_lane != none) occupancy = Occupancy(places, capacity);
  return known;
}

void RoleShares::count(Id op, std::size_t at, Id first_place, std::span<const double> starts,
                       std::span<const double> ends) {
  if (kind[op] == other || (kind[op] == communication && compute_lane == none)) return;
  if (sizes.empty()) return add(op, at, first_place, starts, ends, 1);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const Id place = first_place + static_cast<Id>(i);
    add(op, at, place, starts.subspan(i, 1), ends.subspan(i, 1), sizes[place]);
  }
}

void RoleShares::add(Id op, std::size_t at, Id first_place, std::span<const double> starts,
                     std::span<const double> ends, double ranks) {
  const std::size_t n = starts.size();
  const double covered =
      kind[op] == serving ? 0 : occupancy.cover(first_place, starts.data(), ends.data(), n);
  if (at >= shares.size()) return;
  shares[at].covered += ranks * covered;
  if (kind[op] == communication) return;
  const double seconds = total(starts.data(), ends.data(), n);
  shares[at].joules += ranks * power.work(first_place, starts, ends, seconds);
  if (kind[op] == compute) shares[at].busy += ranks * seconds;
}

}  // namespace rehearse::execution
