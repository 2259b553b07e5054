#include "engine/execution/explain/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/cluster/link_roles.h"
#include "engine/execution/dry_run/dry_run.h"

namespace rehearse::execution {
namespace {

constexpr Steps shortest = {.warm_up = 2, .steady = 1};

Steps affordable(const link::OrderedProgram& linked, const History& history, std::int64_t most) {
  std::int64_t step = 0;  // instances
  for (Id r = 0; r < linked.program.roles.size(); ++r)
    step += static_cast<std::int64_t>(history.places(r) * linked.program.roles[r].ops.size());
  const auto fits = [&](Steps s) {
    return step * (s.warm_up + s.steady + overlapping_steps(linked)) <= most;
  };
  if (!fits(shortest))
    throw InputError(fmt::format(
        "--explain: a step of this program has {} ops on unequal ranks, and {} steps of it are "
        "more than the {} ops that can be kept: fewer micro-batches, or equal devices for all "
        "ranks",
        step, shortest.warm_up + shortest.steady + overlapping_steps(linked), most));
  for (Steps s = explained_steps;; s.steady /= 2) {
    if (s.steady < 2) return shortest;
    if (fits(s)) return s;
  }
}

std::vector<LinkUse> link_uses(const Pricing& pricing, const std::vector<double>& bytes,
                               double step) {
  std::vector<LinkUse> out;
  for (const cluster::LinkRole& role : cluster::link_roles(pricing.cluster)) {
    std::map<std::pair<std::int64_t, double>, std::size_t> known;  // bytes, bandwidth
    for (const Id link : role.links) {
      if (bytes[link] <= 0) continue;
      const double rate = role.bandwidth.value / (pricing.slow.empty() ? 1 : pricing.slow[link]);
      const auto [it, fresh] = known.try_emplace({std::llround(bytes[link]), rate}, out.size());
      if (fresh)
        out.push_back({role.name, pricing.cluster.links()[link].name, 0, bytes[link],
                       BytesPerSecond(rate), bytes[link] / (rate * step)});
      ++out[it->second].count;
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const LinkUse& a, const LinkUse& b) {
    return a.utilisation > b.utilisation;
  });
  return out;
}

std::vector<DeviceUse> device_uses(const link::OrderedProgram& linked, const Pricing& pricing,
                                   const std::vector<PlaceUse>& places) {
  std::vector<DeviceUse> out;
  std::map<std::tuple<Id, Id, std::int64_t>, std::size_t> known;  // kind, role, busy
  for (const PlaceUse& place : places) {
    const Id kind = pricing.cluster.devices()[pricing.rank_to_device[place.rank]].kind;
    const auto [it, fresh] =
        known.try_emplace({kind, place.role, std::llround(1e6 * place.busy)}, out.size());
    if (fresh)
      out.push_back({pricing.cluster.kinds()[kind].name, linked.program.roles[place.role].name,
                     place.rank, 0, place.busy});
    out[it->second].ranks += place.ranks;
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const DeviceUse& a, const DeviceUse& b) { return a.busy > b.busy; });
  return out;
}

/// The part of a path between two times.
std::vector<PathOp> cut(std::span<const PathOp> path, double from, double until) {
  std::vector<PathOp> out;
  for (PathOp at : path) {
    at.start = std::max(at.start, from), at.end = std::min(at.end, until);
    if (at.end > at.start) out.push_back(at);
  }
  return out;
}

/// By part: seconds a step on the path that no bandwidth would save.
std::vector<double> latencies(const link::OrderedProgram& linked, const Pricing& pricing,
                              const WorkParts& parts, const History& history,
                              std::span<const PathOp> path, int steps) {
  std::vector<double> out(parts.all().size(), 0.0);
  if (pricing.profile != nullptr) return out;  // measured times cannot be split
  Pricing wide = pricing;
  wide.slow.assign(pricing.cluster.links().size(), 0.0);
  const costs::Costs costs = wide.costs(linked);
  for (const PathOp& at : path) {
    if (at.op.op == none) continue;
    const Id part = parts.of(at.op.role, at.op.op);
    if (parts.all()[part].kind != PartKind::communication) continue;
    const Id place = linked.place_of[history.rank_of(at.op.role, at.op.place)];
    out[part] += std::min(at.end - at.start, costs.seconds(at.op.role, at.op.op, place)) / steps;
  }
  return out;
}

}  // namespace

Explanation explain(const link::OrderedProgram& linked, const Pricing& pricing, std::int64_t most) {
  const costs::Costs costs = pricing.costs(linked);
  std::optional<Fold> folded;
  if (!needs_events(linked)) folded = fold(linked, costs);
  History history(linked, folded ? &*folded : nullptr);
  const Steps steps = affordable(linked, history, most);
  const int last = steps.warm_up + steps.steady - 1, all = last + 1 + overlapping_steps(linked);
  if (folded)
    dry_run_folded(linked, costs, *folded, all, &history);
  else
    dry_run(linked, costs, cluster::Disturber({}, linked.program.world_size), all, history);

  Explanation out;
  out.steps = steps;
  const double from = end_of_step(history, steps.warm_up - 1), until = end_of_step(history, last);
  out.step_s = (until - from) / steps.steady;
  const std::vector<PathOp> path = critical_path(history, last, from);
  const WorkParts parts(linked, pricing.model);
  const Breakdown time = break_down(history, parts, path, from, until, steps.steady);
  const std::vector<double> latency =
      latencies(linked, pricing, parts, history, path, steps.steady);
  for (std::size_t i = 0; i < parts.all().size(); ++i)
    if (time.parts[i].path > 0 || time.parts[i].ranks > 0)
      out.parts.push_back({parts.all()[i], time.parts[i].path, time.parts[i].ranks, latency[i]});
  out.bubble_fraction = time.bubble_fraction;
  out.exposed_comm_s = time.exposed_comm_s;

  const int middle = steps.warm_up + steps.steady / 2;
  const double begin = end_of_step(history, middle - 1);
  const std::vector<PathOp> one = cut(path, begin, end_of_step(history, middle));
  for (const PathOp& at : one)
    if (at.op.op != none) out.critical.emplace(history.rank_of(at.op.role, at.op.place), at.op.op);
  out.path = stretches(history, pricing.model, parts, one);
  for (Stretch& stretch : out.path) stretch.start -= begin, stretch.end -= begin;
  const std::vector<double> bytes = costs.link_bytes();
  out.links = link_uses(pricing, bytes, out.step_s);
  out.devices = device_uses(linked, pricing, time.places);
  out.gains = gains(linked, pricing, bytes, steps);
  return out;
}

}  // namespace rehearse::execution
