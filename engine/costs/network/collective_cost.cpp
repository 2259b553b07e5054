// The closed form of a collective on a cluster: the head of costs.h has the formula.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <map>
#include <tuple>

#include "engine/collectives/schedule.h"
#include "engine/costs/costs.h"
#include "engine/costs/network/adding.h"
#include "engine/costs/network/contention.h"
#include "engine/costs/network/library_collective.h"
#include "engine/costs/network/rings.h"

namespace rehearse::costs {

double seconds_on(const cluster::Cluster& cluster, Id link, std::int64_t bytes,
                  std::span<const double> slow) {
  return static_cast<double>(bytes) * (slow.empty() ? 1 : slow[link]) /
         cluster.links()[link].bandwidth.value;
}

double leaving_seconds(const cluster::Cluster& cluster, Id from, std::span<const Id> receivers,
                       std::int64_t bytes, std::span<const double> slow) {
  std::vector<Id> common;
  for (std::size_t k = 0; k < receivers.size(); ++k) {
    const auto& links = cluster.way(from, receivers[k], static_cast<double>(bytes)).links;
    if (k == 0) common = links;
    std::erase_if(common, [&](Id link) { return std::ranges::count(links, link) == 0; });
  }
  double seconds = 0;
  for (const Id link : common) seconds = std::max(seconds, seconds_on(cluster, link, bytes, slow));
  return seconds;
}

void Contention::add(Id from, Id to, double bytes) {
  const cluster::Path& path = cluster_.way(from, to, bytes);
  add(path.links, bytes, path.latency.value);
}

void Contention::add(std::span<const Id> links, double bytes, double latency) {
  flows_.push_back({links, latency});
  for (Id link : links) {
    if (load_[link] == 0) touched_.push_back(link);
    load_[link] += bytes;
  }
}

void Contention::finish(std::vector<double>& seconds, bool latencies) {
  seconds.clear();
  for (const Flow& flow : flows_) {
    double worst = 0;
    for (Id link : flow.links)
      worst = std::max(worst, load_[link] * (slow_.empty() ? 1 : slow_[link]) /
                                  cluster_.links()[link].bandwidth.value);
    seconds.push_back((latencies ? flow.latency : 0) + worst);
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

namespace {

/// When each member of each group has finished the rounds so far. A member begins a round when its
/// own transfers of earlier rounds have ended, as in the simulator and on real ranks. So a member
/// of a pipelined tree does not wait for a slow edge elsewhere in the tree.
class MemberTimes {
 public:
  explicit MemberTimes(const std::vector<std::vector<Id>>& groups) : first_(groups.size() + 1, 0) {
    for (std::size_t g = 0; g < groups.size(); ++g) first_[g + 1] = first_[g] + groups[g].size();
    ready_.assign(first_.back(), 0.0);
  }
  /// Adds a transfer to the next round.
  void add(std::size_t group, const collectives::Transfer& t) {
    hops_.push_back({group, first_[group] + static_cast<std::size_t>(t.from),
                     first_[group] + static_cast<std::size_t>(t.to)});
  }
  /// Ends the round. `seconds`: of each transfer, in the order in which they were added.
  void advance(const std::vector<double>& seconds) {
    next_ = ready_;
    for (std::size_t i = 0; i < hops_.size(); ++i) {
      const double end = std::max(ready_[hops_[i].from], ready_[hops_[i].to]) + seconds[i];
      for (const std::size_t member : {hops_[i].from, hops_[i].to})
        next_[member] = std::max(next_[member], end);
    }
    ready_.swap(next_);
    hops_.clear();
  }
  /// Ends `times` rounds like this one, each as long as the group's slowest transfer. Exact for
  /// rings.
  void repeat(const std::vector<double>& seconds, int times) {
    std::vector<double> slowest(first_.size() - 1, 0.0);
    for (std::size_t i = 0; i < hops_.size(); ++i)
      slowest[hops_[i].group] = std::max(slowest[hops_[i].group], seconds[i]);
    for (std::size_t g = 0; g < slowest.size(); ++g)
      for (std::size_t m = first_[g]; m < first_[g + 1]; ++m) ready_[m] += times * slowest[g];
    hops_.clear();
  }
  /// [group]: when its last member has finished.
  std::vector<double> ends() const {
    std::vector<double> out;
    for (std::size_t g = 0; g + 1 < first_.size(); ++g)
      out.push_back(
          first_[g] == first_[g + 1]
              ? 0
              : *std::max_element(ready_.begin() + static_cast<std::ptrdiff_t>(first_[g]),
                                  ready_.begin() + static_cast<std::ptrdiff_t>(first_[g + 1])));
    return out;
  }

 private:
  struct Hop {
    std::size_t group = 0, from = 0, to = 0;  // from, to: indices into ready_
  };
  std::vector<std::size_t> first_;  // [group]: its first member in ready_; last entry: the end
  std::vector<double> ready_ = {}, next_ = {};
  std::vector<Hop> hops_ = {};
};

}  // namespace

std::unique_ptr<const collectives::Schedule> schedule_on(const cluster::Cluster& cluster,
                                                         program::Move move,
                                                         program::Algorithm algorithm,
                                                         std::int64_t elements, program::DType wire,
                                                         std::span<const Id> devices, int root,
                                                         Wiring wiring) {
  std::vector<Id> node_of;
  for (Id device : devices) node_of.push_back(cluster.devices()[device].node);
  if (algorithm == program::Algorithm::automatic)
    algorithm = collectives::choose(move, elements * size_of(wire), node_of);
  const bool rings = algorithm == program::Algorithm::ring && devices.size() > 1 && !has_root(move);
  if (rings && !wiring.rings.empty())
    return collectives::several_rings(move, std::move(wiring.rings), elements);
  if (rings && !wiring.torus.empty())
    return collectives::torus_rings(move, std::move(wiring.torus), elements);
  return collectives::schedule(move, algorithm, elements, node_of, root);
}

namespace {

/// Of collectives that the cluster's library runs: library_collective.h has the form.
CollectiveCost library_cost(const cluster::Cluster& cluster, program::Move move,
                            program::Algorithm algorithm, std::int64_t elements,
                            program::DType wire, const std::vector<std::vector<Id>>& devices,
                            std::span<const int> roots, std::span<const double> slow) {
  CollectiveCost out;
  out.link_bytes.assign(cluster.links().size(), 0.0);
  Contention contention(cluster, slow);
  std::vector<std::size_t> flows;  // [group]
  std::vector<LibraryCollective> runs;
  runs.reserve(devices.size());  // `contention` refers to their links
  const auto size = static_cast<double>(size_of(wire));
  for (std::size_t g = 0; g < devices.size(); ++g) {
    out.seconds.push_back(0);
    out.sent.emplace_back(devices[g].size(), 0);
    flows.push_back(0);
    if (devices[g].size() < 2) continue;
    const LibraryCollective& one = runs.emplace_back(
        library_collective(cluster, move, algorithm, static_cast<double>(elements) * size,
                           devices[g], roots.empty() ? 0 : roots[g]));
    out.seconds.back() = one.latency;
    flows.back() = one.flows.size() + one.sums.size();
    std::vector<double> sent = one.sent;
    sent.resize(devices[g].size(), 0.0);
    for (const Flow& flow : one.flows) {
      const Id from = devices[g][static_cast<std::size_t>(flow.from)],
               to = devices[g][static_cast<std::size_t>(flow.to)];
      contention.add(from, to, flow.bytes * one.occupancy);
      for (const Id link : cluster.path(from, to, flow.bytes * one.occupancy))
        out.link_bytes[link] += flow.bytes;
      sent[static_cast<std::size_t>(flow.from)] += flow.bytes;
    }
    for (const SumFlow& sum : one.sums) {
      contention.add(sum.links, sum.bytes * one.occupancy);
      for (const Id link : sum.links) out.link_bytes[link] += sum.bytes;
    }
    for (std::size_t m = 0; m < sent.size(); ++m) out.sent.back()[m] = std::llround(sent[m] / size);
  }
  std::vector<double> seconds;
  contention.finish(seconds, false);
  auto next = seconds.begin();
  for (std::size_t g = 0; g < devices.size(); ++g) {
    const auto end = next + static_cast<std::ptrdiff_t>(flows[g]);
    if (next != end) out.seconds[g] += *std::max_element(next, end);
    next = end;
  }
  return out;
}

}  // namespace

CollectiveCost collective_cost(const cluster::Cluster& cluster, program::Move move,
                               program::Algorithm algorithm, std::int64_t elements,
                               program::DType wire, const std::vector<std::vector<Id>>& devices,
                               std::span<const int> roots, std::span<const double> slow) {
  if (library_runs(cluster, algorithm, move))
    return library_cost(cluster, move, algorithm, elements, wire, devices, roots, slow);
  CollectiveCost out;
  out.link_bytes.assign(cluster.links().size(), 0.0);
  // Groups of equal shape (nodes numbered by first appearance, wiring) share one schedule.
  std::map<std::tuple<std::vector<Id>, Wiring, int>, std::size_t> known;
  std::vector<std::unique_ptr<const collectives::Schedule>> schedules;
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
    Wiring wiring = wiring_of(cluster, devices[g]);
    const int root = roots.empty() ? 0 : roots[g];
    auto [it, fresh] = known.try_emplace({std::move(shape), wiring, root}, schedules.size());
    of[g] = it->second;
    if (fresh) {
      schedules.push_back(schedule_on(cluster, move, algorithm, elements, wire, devices[g], root,
                                      std::move(wiring)));
      sent.emplace_back();
      for (int m = 0; m < schedules.back()->members(); ++m)
        sent.back().push_back(schedules.back()->sent(m));
    }
    const collectives::Schedule& s = *schedules[of[g]];
    transfers += static_cast<double>(s.members()) * s.rounds();
    rounds = std::max(rounds, s.rounds());
    out.sent.push_back(sent[of[g]]);
  }
  auto same = [](const auto& a, const auto& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](auto x, auto y) { return x.round == y.round && x.times == y.times; });
  };
  std::vector<collectives::Schedule::Repeat> plan;
  if (!schedules.empty()) plan = schedules[0]->distinct();
  bool alike = transfers > 16384;  // smaller collectives: round by round, exact to the element
  for (std::size_t s = 1; alike && s < schedules.size(); ++s)
    alike = same(plan, schedules[s]->distinct());
  if (!alike) {
    plan.clear();
    for (int r = 0; r < rounds; ++r) plan.push_back({r, 1});
  }
  Contention contention(cluster, slow);
  MemberTimes clocks(devices);
  std::vector<collectives::Transfer> round;
  std::vector<double> seconds;
  const auto size = static_cast<double>(size_of(wire));
  for (const auto [r, times] : plan) {
    for (std::size_t g = 0; g < devices.size(); ++g) {
      const collectives::Schedule& s = *schedules[of[g]];
      if (r >= s.rounds()) continue;
      round.clear();
      s.round(r, -1, round);
      for (const collectives::Transfer& t : round) {
        contention.add(devices[g][static_cast<std::size_t>(t.from)],
                       devices[g][static_cast<std::size_t>(t.to)],
                       static_cast<double>(t.end - t.begin) * size);
        clocks.add(g, t);
      }
    }
    contention.finish(seconds);
    contention.clear(times, &out.link_bytes);
    if (alike)
      clocks.repeat(seconds, times);
    else
      clocks.advance(seconds);
  }
  out.seconds = clocks.ends();
  for (std::size_t g = 0; g < devices.size(); ++g) {
    out.seconds[g] =
        std::max(out.seconds[g],
                 adding_seconds(cluster, move, algorithm, static_cast<double>(elements) * size,
                                devices[g], roots.empty() ? 0 : roots[g]));
    if (devices[g].size() > 1) out.seconds[g] += cluster.library().launch.value;
  }
  return out;
}

std::vector<double> collective_seconds(const cluster::Cluster& cluster, program::Move move,
                                       program::Algorithm algorithm, std::int64_t elements,
                                       program::DType wire,
                                       const std::vector<std::vector<Id>>& devices,
                                       std::span<const int> roots, std::span<const double> slow) {
  return collective_cost(cluster, move, algorithm, elements, wire, devices, roots, slow).seconds;
}

}  // namespace rehearse::costs
