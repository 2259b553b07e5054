// Compares a few assignments of devices to ranks: in device order; the fastest or the slowest
// devices in the first stages, or in the first replicas; the fastest devices on the slowest ranks.
// Swaps of devices of the same kind lower the cost of each. The local or proven optimum of eq. 1 is
// compared as well. The estimate of the step time (estimate.h) ranks all of them.
#include "engine/planner/placement/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/base/numbers/numbers.h"
#include "engine/base/refusal.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/measure/metrics.h"
#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "engine/planner/placement/colocate.h"
#include "engine/planner/placement/shares.h"
#include "engine/planner/search/estimate.h"

namespace rehearse::planner {
namespace {

constexpr int rounds = 4;           // of stages and shares, each computed from the other
constexpr double worth_it = 0.999;  // unequal shares must take less than this part of equal ones

/// The devices that the mesh may use.
std::vector<Id> devices_of(const cluster::Cluster& cluster, const plan::Plan& mesh) {
  std::vector<Id> out = mesh.placement.rank_to_device;
  if (out.empty()) {
    out.resize(cluster.devices().size());
    std::iota(out.begin(), out.end(), Id{0});
  }
  return out;
}

std::vector<std::vector<Id>> stages_of(const std::vector<std::size_t>& ends) {
  std::vector<std::vector<Id>> out;
  Id segment = 0;
  for (std::size_t end : ends) {
    out.emplace_back();
    while (segment < end) out.back().push_back(segment++);
  }
  return out;
}

class Placer {
 public:
  Placer(const model::ModelSpec& model, const cluster::Cluster& cluster, const plan::Plan& plan,
         const std::vector<Id>& devices, const costs::Profile* profile, bool unequal,
         std::span<const double> pace)
      : model_(model),
        plan_(plan),
        devices_(devices),
        unequal_(unequal && plan.mesh.dp > 1),
        pace_(pace),
        distances_(cluster, devices, profile),
        table_(model, plan_, cluster, profile),
        estimate_(model, plan_, cluster, devices_, distances_, table_, pace) {
    for (Id device : devices_) {
      kinds_.push_back(cluster.devices()[device].kind);
      nodes_.push_back(cluster.devices()[device].node);
    }
  }

  /// All placements that fit into `memory_part` of each device's memory, best first.
  std::vector<Placement> ranked(double memory_part) {
    memory_part_ = memory_part;
    std::vector<Placement> out;
    for (const Assignment& assignment : assignments()) {
      Placement now = placed(assignment);
      const bool known = std::any_of(out.begin(), out.end(), [&](const Placement& p) {
        return p.rank_to_device == now.rank_to_device;
      });
      if (!now.stages.empty() && !known) out.push_back(std::move(now));
    }
    for (Placement& p : out)
      p.greedy = greedy_, p.local = local_, p.exact = exact_, p.colocated = colocated_;
    // Rounded to float, so that rounding errors do not reorder equal placements.
    const auto key = [](const Placement& p) {
      return std::pair(static_cast<float>(p.seconds), static_cast<float>(p.cost));
    };
    std::stable_sort(out.begin(), out.end(),
                     [&](const Placement& a, const Placement& b) { return key(a) < key(b); });
    return out;
  }

 private:
  std::size_t ranks() const {
    return static_cast<std::size_t>(plan_.mesh.pp) * static_cast<std::size_t>(plan_.mesh.dp) *
           static_cast<std::size_t>(plan_.mesh.tp);
  }

  Assignment in_order() const {
    Assignment out(ranks());
    std::iota(out.begin(), out.end(), Id{0});
    return out;
  }

  /// Indices into devices_, fastest first, as many as there are ranks.
  std::vector<Id> fastest_places() const {
    std::vector<Id> order(devices_.size());
    std::iota(order.begin(), order.end(), Id{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](Id a, Id b) { return seconds_of(a) < seconds_of(b); });
    order.resize(ranks());
    return order;
  }
  double seconds_of(Id place) const {
    return table_.seconds(kinds_[place], plan_.samples(), 0, model_.segments.size());
  }

  /// The fastest devices on the ranks with the slowest pace.
  Assignment by_pace() const {
    const std::vector<Id> order = fastest_places();
    std::vector<Id> slowest(ranks());
    std::iota(slowest.begin(), slowest.end(), Id{0});
    std::stable_sort(slowest.begin(), slowest.end(),
                     [&](Id a, Id b) { return pace_[a] > pace_[b]; });
    Assignment out(ranks());
    for (std::size_t i = 0; i < order.size(); ++i) out[slowest[i]] = order[i];
    return out;
  }

  /// Devices by speed on ranks in the order (stage, replica, shard) if `stages_outside`, else
  /// (replica, stage, shard).
  Assignment by_speed(bool fastest_first, bool stages_outside) const {
    std::vector<Id> order = fastest_places();
    if (!fastest_first)
      std::stable_sort(order.begin(), order.end(),
                       [&](Id a, Id b) { return seconds_of(a) > seconds_of(b); });
    const RankGrid mesh(plan_);
    Assignment out(ranks());
    std::size_t next = 0;
    for (int i = 0; i < (stages_outside ? plan_.mesh.pp : plan_.mesh.dp); ++i)
      for (int k = 0; k < (stages_outside ? plan_.mesh.dp : plan_.mesh.pp); ++k)
        for (int t = 0; t < plan_.mesh.tp; ++t)
          out[stages_outside ? mesh.rank(i, k, t) : mesh.rank(k, i, t)] = order[next++];
    return out;
  }

  /// The assignments to compare. Also sets greedy_, local_, exact_ and colocated_.
  std::vector<Assignment> assignments() {
    const std::vector<RankTraffic> traffic = traffic_of(model_, plan_);
    std::vector<Assignment> out{in_order()};
    const bool unlike =
        std::any_of(kinds_.begin(), kinds_.end(), [&](Id k) { return k != kinds_[0]; });
    if (unlike)
      for (bool fastest_first : {true, false})
        for (bool stages_outside : {true, false})
          out.push_back(by_speed(fastest_first, stages_outside));
    if (unlike && !pace_.empty()) out.push_back(by_pace());
    if (!distances_.tabled()) {
      greedy_ = local_ = cost_of(traffic, out[0], distances_);
      return out;
    }
    const std::vector<double> seams =
        seams_of(plan_.schedule.global_batch / plan_.schedule.micro_batches);
    colocated_ = eq1(seams, colocate(seams, nodes_, distances_), distances_);
    for (Assignment& a : out) a = local_search(traffic, std::move(a), distances_, kinds_);
    const Assignment greedy = greedy_assignment(traffic, ranks(), distances_);
    const Assignment local = local_search(traffic, greedy, distances_);
    greedy_ = cost_of(traffic, greedy, distances_);
    local_ = cost_of(traffic, local, distances_);
    out.push_back(local);
    if (const auto exact = exact_assignment(traffic, ranks(), distances_)) {
      exact_ = cost_of(traffic, *exact, distances_);
      out.push_back(*exact);
    }
    return out;
  }

  /// By layer: c_l in bytes per step, for `samples` samples per micro-batch: activations and their
  /// gradients.
  std::vector<double> seams_of(int samples) const {
    return std::vector<double>(
        static_cast<std::size_t>(model_.layers),
        2 * boundary_bytes(model_, plan_, samples) * plan_.schedule.micro_batches);
  }

  /// Eq. 1 as printed: traffic between layers, summed over all replicas.
  double seams(const Assignment& assignment) const {
    std::vector<int> stage_of(static_cast<std::size_t>(model_.layers));
    for (std::size_t chunk = 0; chunk < plan_.placement.stages.size(); ++chunk)
      for (const Id segment : plan_.placement.stages[chunk])
        if (const int layer = model_.segments[segment].layer; layer >= 0)
          stage_of[static_cast<std::size_t>(layer)] = static_cast<int>(chunk) % plan_.mesh.pp;
    const RankGrid mesh(plan_);
    double sum = 0;
    for (int replica = 0; replica < plan_.mesh.dp; ++replica) {
      std::vector<Id> place;
      for (const int stage : stage_of) place.push_back(assignment[mesh.rank(stage, replica, 0)]);
      sum += eq1(seams_of(plan_.samples(replica)), place, distances_);
    }
    return sum;
  }

  /// Sets the stages of plan_ by `partition`. False: nothing fits.
  bool cut() {
    const auto ends = partition(model_.segments.size(), plan_.placement.stages.size(),
                                [&](std::size_t chunk, std::size_t begin, std::size_t end) {
                                  return estimate_.chunk_seconds(chunk, begin, end, memory_part_);
                                });
    if (ends) plan_.placement.stages = stages_of(*ends);
    return ends.has_value();
  }

  /// The best stages and shares for an assignment. Empty stages: nothing fits.
  Placement placed(const Assignment& assignment) {
    const std::vector<int> shares_so_far = plan_.schedule.shares;
    estimate_.set_assignment(assignment);
    Placement out;
    out.seconds = std::numeric_limits<double>::infinity();
    for (Id place : assignment) out.rank_to_device.push_back(devices_[place]);
    const auto keep = [&](double bar) {
      const double seconds = estimate_.step_seconds();
      if (seconds >= out.seconds * bar) return;
      out.seconds = seconds, out.stages = plan_.placement.stages,
      out.shares = plan_.schedule.shares;
      out.cost = cost_of(traffic_of(model_, plan_), assignment, distances_);
      out.seams = seams(assignment);
    };
    if (cut()) keep(1);
    for (int round = 0; unequal_ && round < rounds; ++round) {
      std::vector<int> shares =
          apportion(estimate_.speeds(), plan_.schedule.global_batch / plan_.schedule.micro_batches);
      if (std::all_of(shares.begin(), shares.end(), [&](int s) { return s == shares[0]; }))
        shares.clear();
      if (shares == plan_.schedule.shares) break;
      plan_.schedule.shares = std::move(shares);
      if (!cut()) break;
      keep(out.shares.empty() ? worth_it : 1);
    }
    plan_.schedule.shares = shares_so_far;
    return out;
  }

  const model::ModelSpec& model_;
  plan::Plan plan_;  // stages and shares change
  const std::vector<Id>& devices_;
  bool unequal_;
  std::span<const double> pace_;
  Distances distances_;
  SegmentTable table_;
  Estimate estimate_;
  std::vector<Id> kinds_ = {}, nodes_ = {};  // by index in devices_
  double memory_part_ = 1, greedy_ = 0, local_ = 0;
  std::optional<double> exact_ = {}, colocated_ = {};
};

}  // namespace

std::vector<Placement> placements(const model::ModelSpec& model, const cluster::Cluster& cluster,
                                  const plan::Plan& mesh, const costs::Profile* profile,
                                  bool unequal, std::span<const double> pace) {
  const std::vector<Id> devices = devices_of(cluster, mesh);
  plan::Plan plan = mesh;
  plan.placement.stages.clear(), plan.schedule.shares.clear(), plan.exchange.sparse.layers.clear(),
      plan.placement.rank_to_device.clear();
  const auto ranks = static_cast<std::size_t>(plan.mesh.pp) *
                     static_cast<std::size_t>(plan.mesh.dp) *
                     static_cast<std::size_t>(plan.mesh.tp);
  if (devices.size() < ranks)
    refuse("pp", std::to_string(plan.mesh.pp),
           fmt::format("pp {} x dp {} x tp {} = {} ranks, but {} devices", plan.mesh.pp,
                       plan.mesh.dp, plan.mesh.tp, ranks, devices.size()));
  const int micro_batch = plan.schedule.global_batch / std::max(1, plan.schedule.micro_batches);
  if (unequal && plan.mesh.dp > 1 && micro_batch >= plan.mesh.dp && micro_batch % plan.mesh.dp != 0)
    plan.schedule.shares =
        apportion(std::vector<double>(static_cast<std::size_t>(plan.mesh.dp), 1), micro_batch);
  plan = complete(std::move(plan), model);
  Placer placer(model, cluster, plan, devices, profile, unequal, pace);
  std::vector<Placement> out = placer.ranked(1);
  if (!out.empty()) return out;
  out = placer.ranked(std::numeric_limits<double>::infinity());
  for (Placement& p : out) p.fits = false;
  return out;
}

Placement place(const model::ModelSpec& model, const cluster::Cluster& cluster,
                const plan::Plan& mesh, const costs::Profile* profile, bool unequal,
                std::span<const double> pace) {
  return placements(model, cluster, mesh, profile, unequal, pace).front();
}

std::string gap_text(const Placement& p) {
  const auto above = [](double cost, double than) {
    return percent(than > 0 ? cost / than - 1 : 0, 1);
  };
  const std::string found =
      !p.exact
          ? fmt::format("eq. 1: greedy {:.4g} s, local search {:.4g} s ({} below greedy)", p.greedy,
                        p.local, percent(p.greedy > 0 ? 1 - p.local / p.greedy : 0, 1))
          : fmt::format(
                "eq. 1: greedy {:.4g} s ({} above the optimum), local search {:.4g} s "
                "({}), exact {:.4g} s",
                p.greedy, above(p.greedy, *p.exact), p.local, above(p.local, *p.exact), *p.exact);
  return fmt::format(
      "{}, taken {:.4g} s; of the layers' seams alone {:.4g} s{}", found, p.cost, p.seams,
      p.colocated ? fmt::format(", by the paper's co-location {:.4g} s", *p.colocated)
                  : std::string());
}

}  // namespace rehearse::planner
