// The closed form of a collective on a cluster: see costs.h for what sits on a link.
#include <algorithm>
#include <cassert>
#include <map>

#include "engine/collectives/schedule.h"
#include "engine/contention.h"
#include "engine/costs.h"

namespace rehearse {

void Contention::add(Id from, Id to, double bytes) {
  flows_.push_back({cluster_.path(from, to)});
  for (Id link : flows_.back().path) {
    if (load_[link] == 0) touched_.push_back(link);
    load_[link] += bytes;
  }
}

void Contention::finish(std::vector<double>& seconds) {
  seconds.clear();
  for (const Flow& flow : flows_) {
    double worst = 0, latency = 0;
    for (Id link : flow.path) {
      const Link& l = cluster_.links()[link];
      worst = std::max(worst, load_[link] * (slow_.empty() ? 1 : slow_[link]) / l.bandwidth.value);
      latency += l.latency.value;
    }
    seconds.push_back(latency + worst);
  }
  flows_.clear();
}

void Contention::clear(double times, std::vector<double>* total) {
  for (Id link : touched_) {
    if (total) (*total)[link] += times * load_[link];
    load_[link] = 0;
  }
  touched_.clear();
}

std::unique_ptr<const Schedule> schedule_on(const Cluster& cluster, Move move, Algorithm algorithm,
                                            std::int64_t elements, DType wire,
                                            std::span<const Id> devices, int root) {
  std::vector<Id> node_of;
  for (Id device : devices) node_of.push_back(cluster.devices()[device].node);
  if (algorithm == Algorithm::automatic)
    algorithm = choose(move, elements * size_of(wire), node_of);
  return schedule(move, algorithm, elements, node_of, root);
}

CollectiveCost collective_cost(const Cluster& cluster, Move move, Algorithm algorithm,
                               std::int64_t elements, DType wire,
                               const std::vector<std::vector<Id>>& devices,
                               std::span<const int> roots, std::span<const double> slow) {
  CollectiveCost out;
  out.seconds.assign(devices.size(), 0.0);
  out.link_bytes.assign(cluster.links().size(), 0.0);
  // Groups that look alike (nodes numbered by first appearance) play the same schedule.
  std::map<std::pair<std::vector<Id>, int>, std::size_t> known;
  std::vector<std::unique_ptr<const Schedule>> schedules;
  std::vector<std::vector<std::int64_t>> sent;
  std::vector<std::size_t> of(devices.size());
  double transfers = 0;
  int rounds = 0;
  for (std::size_t g = 0; g < devices.size(); ++g) {
    std::map<Id, Id> number;
    std::vector<Id> shape;
    for (Id device : devices[g])
      shape.push_back(
          number.try_emplace(cluster.devices()[device].node, static_cast<Id>(number.size()))
              .first->second);
    const int root = roots.empty() ? 0 : roots[g];
    auto [it, fresh] = known.try_emplace({std::move(shape), root}, schedules.size());
    of[g] = it->second;
    if (fresh) {
      schedules.push_back(schedule_on(cluster, move, algorithm, elements, wire, devices[g], root));
      sent.emplace_back();
      for (int m = 0; m < schedules.back()->members(); ++m)
        sent.back().push_back(schedules.back()->sent(m));
    }
    const Schedule& s = *schedules[of[g]];
    transfers += static_cast<double>(s.members()) * s.rounds();
    rounds = std::max(rounds, s.rounds());
    out.sent.push_back(sent[of[g]]);
  }
  auto same = [](const auto& a, const auto& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](auto x, auto y) { return x.round == y.round && x.times == y.times; });
  };
  std::vector<Schedule::Repeat> plan;
  if (!schedules.empty()) plan = schedules[0]->distinct();
  bool alike = transfers > 16384;  // small ones are summed round by round, exact to the element
  for (std::size_t s = 1; alike && s < schedules.size(); ++s)
    alike = same(plan, schedules[s]->distinct());
  if (!alike) {
    plan.clear();
    for (int r = 0; r < rounds; ++r) plan.push_back({r, 1});
  }
  Contention contention(cluster, slow);
  std::vector<Transfer> round;
  std::vector<double> seconds;
  std::vector<std::size_t> owner;
  const auto size = static_cast<double>(size_of(wire));
  for (const auto [r, times] : plan) {
    owner.clear();
    for (std::size_t g = 0; g < devices.size(); ++g) {
      const Schedule& s = *schedules[of[g]];
      if (r >= s.rounds()) continue;
      round.clear();
      s.round(r, -1, round);
      for (const Transfer& t : round) {
        contention.add(devices[g][static_cast<std::size_t>(t.from)],
                       devices[g][static_cast<std::size_t>(t.to)],
                       static_cast<double>(t.end - t.begin) * size);
        owner.push_back(g);
      }
    }
    contention.finish(seconds);
    contention.clear(times, &out.link_bytes);
    std::vector<double> slowest(devices.size(), 0.0);
    for (std::size_t i = 0; i < seconds.size(); ++i)
      slowest[owner[i]] = std::max(slowest[owner[i]], seconds[i]);
    for (std::size_t g = 0; g < devices.size(); ++g) out.seconds[g] += times * slowest[g];
  }
  return out;
}

std::vector<double> collective_seconds(const Cluster& cluster, Move move, Algorithm algorithm,
                                       std::int64_t elements, DType wire,
                                       const std::vector<std::vector<Id>>& devices,
                                       std::span<const int> roots, std::span<const double> slow) {
  return collective_cost(cluster, move, algorithm, elements, wire, devices, roots, slow).seconds;
}

}  // namespace rehearse
