#include "engine/planner/search/estimate.h"

#include <algorithm>
#include <limits>

namespace rehearse::planner {
namespace {

/// The part of a tensor that each member of a ring all-reduce sends.
double ring_part(int members) { return 2.0 * (members - 1) / members; }

/// First segment and end of a chunk.
std::pair<std::size_t, std::size_t> bounds(const std::vector<Id>& segments) {
  return {segments.front(), std::size_t{segments.back()} + 1};
}

}  // namespace

Estimate::Estimate(const model::ModelSpec& model, const plan::Plan& plan,
                   const cluster::Cluster& cluster, std::span<const Id> devices,
                   const Distances& distances, const SegmentTable& table,
                   std::span<const double> pace)
    : model_(model),
      plan_(plan),
      cluster_(cluster),
      devices_(devices),
      distances_(distances),
      table_(table),
      pace_(pace) {}

void Estimate::set_assignment(const Assignment& assignment) {
  at_ = assignment;
  const RankGrid mesh(plan_);
  players_.assign(static_cast<std::size_t>(plan_.mesh.pp), {});
  for (int p = 0; p < plan_.mesh.pp; ++p)
    for (int d = 0; d < plan_.mesh.dp; ++d) {
      double hop = 0;
      for (int t = 0; t < plan_.mesh.tp && plan_.mesh.tp > 1; ++t)
        hop = std::max(hop, distances_(at_[mesh.rank(p, d, t)],
                                       at_[mesh.rank(p, d, (t + 1) % plan_.mesh.tp)]));
      std::vector<std::pair<Id, double>> kinds;
      for (int t = 0; t < plan_.mesh.tp; ++t) {
        const Id rank = mesh.rank(p, d, t);
        const std::pair kind(cluster_.devices()[devices_[at_[rank]]].kind,
                             pace_.empty() ? 1.0 : pace_[rank]);
        if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
      }
      for (const auto& [kind, pace] : kinds)
        players_[static_cast<std::size_t>(p)].push_back({kind, d, hop, pace});
    }
}

double Estimate::seconds_of(const StageRanks& player, int samples, std::size_t begin,
                            std::size_t end) const {
  const double compute = player.pace * table_.seconds(player.kind, samples, begin, end);
  if (plan_.mesh.tp == 1) return compute;
  const double passes = plan_.schedule.recompute ? 3 : 2;
  return compute + passes * static_cast<double>(end - begin) * ring_part(plan_.mesh.tp) *
                       boundary_bytes(model_, plan_, samples) * player.hop;
}

double Estimate::chunk_seconds(std::size_t chunk, std::size_t begin, std::size_t end,
                               double memory_part) const {
  const auto stage = chunk % static_cast<std::size_t>(plan_.mesh.pp);
  double worst = 0;
  const StageRanks* last = nullptr;
  for (const StageRanks& player : players_[stage]) {
    const int samples = plan_.samples(player.replica);
    const bool same = last != nullptr && last->kind == player.kind && last->hop == player.hop &&
                      last->pace == player.pace && plan_.samples(last->replica) == samples;
    last = &player;
    if (same) continue;
    const double memory = cluster_.kinds()[player.kind].usable().value;
    if (plan_.schedule.virtual_stages == 1 &&
        table_.bytes(static_cast<int>(stage), samples, begin, end) > memory_part * memory)
      return std::numeric_limits<double>::infinity();
    worst = std::max(worst, seconds_of(player, samples, begin, end));
  }
  return worst;
}

double Estimate::replica_seconds(int stage, int replica, std::size_t begin, std::size_t end) const {
  double worst = 0;
  for (const StageRanks& player : players_[static_cast<std::size_t>(stage)])
    if (player.replica == replica)
      worst = std::max(worst, seconds_of(player, plan_.samples(replica), begin, end));
  return worst;
}

std::vector<double> Estimate::speeds() const {
  std::vector<double> out;
  for (int d = 0; d < plan_.mesh.dp; ++d) {
    std::vector<double> busy(static_cast<std::size_t>(plan_.mesh.pp), 0.0);
    for (std::size_t c = 0; c < plan_.placement.stages.size(); ++c) {
      const auto [begin, end] = bounds(plan_.placement.stages[c]);
      const std::size_t stage = c % busy.size();
      busy[stage] += replica_seconds(static_cast<int>(stage), d, begin, end);
    }
    out.push_back(plan_.samples(d) / *std::max_element(busy.begin(), busy.end()));
  }
  return out;
}

double Estimate::step_seconds() const {
  const RankGrid mesh(plan_);
  double worst = 0;
  for (int d = 0; d < plan_.mesh.dp; ++d) {
    std::vector<double> busy(static_cast<std::size_t>(plan_.mesh.pp), 0.0);
    double fill = 0, hops = 0;
    const double boundary = boundary_bytes(model_, plan_, plan_.samples(d));
    for (std::size_t c = 0; c < plan_.placement.stages.size(); ++c) {
      const auto [begin, end] = bounds(plan_.placement.stages[c]);
      const auto stage = static_cast<int>(c % busy.size());
      busy[c % busy.size()] += replica_seconds(stage, d, begin, end);
      if (c + 1 == plan_.placement.stages.size()) continue;
      const int next = (stage + 1) % plan_.mesh.pp;
      hops += 2 * boundary *
              distances_.slowest(at_[mesh.rank(stage, d, 0)], at_[mesh.rank(next, d, 0)]);
    }
    for (double b : busy) fill += b;
    // Interleaving divides the bubble by virtual_stages.
    const double slowest = *std::max_element(busy.begin(), busy.end());
    worst = std::max(worst, slowest * plan_.schedule.micro_batches +
                                (fill - slowest + hops) / plan_.schedule.virtual_stages +
                                exposed_seconds(busy));
  }
  return worst;
}

/// By stage: seconds of the slowest ring all-reduce of its gradients. Rings that leave a node
/// together share its bandwidth.
std::vector<double> Estimate::reduce_seconds() const {
  const auto stages = static_cast<std::size_t>(plan_.mesh.pp);
  std::vector<double> bytes(stages, 0.0), out(stages, 0.0);
  for (std::size_t c = 0; c < plan_.placement.stages.size(); ++c)
    bytes[c % stages] += gradient_bytes(model_, plan_, plan_.placement.stages[c]);
  const RankGrid mesh(plan_);
  const auto node = [&](Id rank) { return cluster_.devices()[devices_[at_[rank]]].node; };
  for (int p = 0; p < plan_.mesh.pp; ++p) {
    std::vector<int> leaving(static_cast<std::size_t>(std::max(1, cluster_.nodes())), 0);
    const auto each_edge = [&](const auto& f) {
      for (int t = 0; t < plan_.mesh.tp; ++t)
        for (int d = 0; d < plan_.mesh.dp; ++d)
          f(mesh.rank(p, d, t), mesh.rank(p, (d + 1) % plan_.mesh.dp, t));
    };
    each_edge([&](Id a, Id b) { leaving[node(a)] += node(a) != node(b) ? 1 : 0; });
    double& worst = out[static_cast<std::size_t>(p)];
    each_edge([&](Id a, Id b) {
      const int together = node(a) == node(b) ? 1 : leaving[node(a)];
      worst = std::max(worst, ring_part(plan_.mesh.dp) * bytes[static_cast<std::size_t>(p)] *
                                  distances_.slowest(at_[a], at_[b]) * together);
    });
  }
  return out;
}

/// Seconds of the reductions that the last backward does not hide. A stage's reduction overlaps
/// with its own backward and with those of the stages before it. The last bucket of the first stage
/// is never hidden.
double Estimate::exposed_seconds(const std::vector<double>& busy) const {
  if (plan_.mesh.dp == 1) return 0;
  constexpr double backward = 2.0 / 3;  // its part of a micro-batch's seconds
  const std::vector<double> reduce = reduce_seconds();
  double hidden = 0, worst = 0;
  for (std::size_t p = 0; p < reduce.size(); ++p) {
    hidden += backward * busy[p];
    worst = std::max(worst, reduce[p] - hidden);
  }
  const double first = gradient_bytes(model_, plan_, plan_.placement.stages[0]);
  return std::max(worst,
                  reduce[0] * std::min(1.0, plan_.exchange.bucket_bytes() / std::max(first, 1.0)));
}

}  // namespace rehearse::planner
