#include "engine/planner/placement/partition.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "engine/link/workspace.h"
#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/methods/strategy.h"
#include "engine/planner/placement/rank_grid.h"

namespace rehearse::planner {
namespace {

constexpr double no_division = std::numeric_limits<double>::infinity();

/// Seconds of the slowest chunk so far, and the sum over all chunks so far.
using Score = std::pair<double, double>;

/// Bytes of states and gradients per parameter on one of the dp ranks (Rajbhandari et al. 2020,
/// section 3.1).
double bytes_per_parameter(const plan::Plan& plan, int weight_versions) {
  const bool low = plan.precision != program::DType::f32;
  const double param = low ? 2 : 4, grad = plan.keeps_gradients()
                                               ? static_cast<double>(size_of(plan.gradient_type()))
                                               : 0;
  const double optimizer = optimizer_bytes(plan);
  const auto part = [&](bool sharded) { return sharded ? 1.0 / plan.mesh.dp : 1.0; };
  return param * weight_versions * part(plan.exchange.sharding.zero >= 3) +
         grad * part(plan.shards_gradients()) + optimizer * part(plan.exchange.sharding.zero >= 1);
}

}  // namespace

std::optional<std::vector<std::size_t>> partition(std::size_t n, std::size_t chunks,
                                                  const ChunkSeconds& seconds) {
  std::vector<std::vector<Score>> best(chunks + 1,
                                       std::vector<Score>(n + 1, {no_division, no_division}));
  std::vector<std::vector<std::size_t>> cut(chunks + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = {0, 0};
  for (std::size_t c = 1; c <= chunks; ++c)
    for (std::size_t end = c; end + (chunks - c) <= n; ++end)
      for (std::size_t begin = end; begin-- > c - 1;) {
        const double own = seconds(c - 1, begin, end);
        if (own > best[c][end].first) break;  // larger chunks take even longer
        const Score before = best[c - 1][begin];
        const Score now{std::max(before.first, own), before.second + own};
        if (now < best[c][end]) best[c][end] = now, cut[c][end] = begin;
      }
  if (best[chunks][n].first == no_division) return std::nullopt;
  std::vector<std::size_t> ends(chunks);
  for (std::size_t c = chunks, end = n; c > 0; end = cut[c--][end]) ends[c - 1] = end;
  return ends;
}

SegmentTable::SegmentTable(const model::ModelSpec& model, const plan::Plan& plan,
                           const cluster::Cluster& cluster, const costs::Profile* profile)
    : model_(model), plan_(plan), cluster_(cluster), prices_(model, profile) {
  const methods::Strategy& strategy = methods::strategy_named(plan.method);
  order_ = strategy.order(plan, model);
  bytes_per_parameter_ =
      bytes_per_parameter(plan, strategy.sync(plan).weight_versions(plan, model, 0));
  std::set<Id> seen;
  for (const model::Segment& segment : model.segments) {
    double own = 0;
    for (Id group : segment.groups) {
      const auto elements = static_cast<double>(elements_of(model.groups[group], plan.mesh.tp));
      (seen.insert(group).second ? own : tied_) += elements;
    }
    elements_.push_back(elements_.back() + own);
  }
}

std::vector<double> SegmentTable::sums_of(Id kind, int samples) const {
  const cluster::DeviceKind& device = cluster_.kinds()[kind];
  std::vector<program::Pass> passes{program::Pass::forward, program::Pass::backward};
  if (recomputes_all(plan_)) passes.push_back(program::Pass::recompute);
  std::vector<double> sums{0};
  for (Id s = 0; s < model_.segments.size(); ++s) {
    double seconds = 0;
    for (program::Pass pass : passes)
      seconds += prices_.pass(device, s, pass, samples, split(), plan_.precision).seconds;
    sums.push_back(sums.back() + seconds);
  }
  return sums;
}

double SegmentTable::seconds(Id kind, int samples, std::size_t begin, std::size_t end) const {
  auto [it, fresh] = seconds_.try_emplace({kind, samples});
  if (fresh) it->second = sums_of(kind, samples);
  return it->second[end] - it->second[begin];
}

const SegmentTable::Activations& SegmentTable::activations(int samples) const {
  auto [it, fresh] = activations_.try_emplace(samples);
  Activations& a = it->second;
  if (!fresh) return a;
  const double input =
      boundary_bytes(model_, plan_, samples) / (plan_.mesh.sequence_parallel ? plan_.mesh.tp : 1);
  const model::TensorSplit split = this->split();
  a.kept = {0};
  for (Id s = 0; s < model_.segments.size(); ++s) {
    a.saved.push_back(static_cast<double>(saved_bytes(model_, s, samples, split, plan_.precision)));
    a.workspace.push_back(static_cast<double>(std::max(
        link::workspace_bytes(model_, s, program::Pass::forward, samples, split, plan_.precision),
        link::workspace_bytes(model_, s, program::Pass::backward, samples, split,
                              plan_.precision))));
    const bool again = recomputes_all(plan_) &&
                       plan_.schedule.recompute_unit == plan::RecomputeUnit::layer &&
                       model_.segments[s].kind == model::SegmentKind::mlp;
    a.kept.push_back(a.kept.back() + (again ? 0 : input) +
                     (recomputes_all(plan_) ? 0 : a.saved.back()));
  }
  return a;
}

double SegmentTable::bytes(int stage, int samples, std::size_t begin, std::size_t end) const {
  const Activations& a = activations(samples);
  const bool lone_head = end == model_.segments.size() && begin > 0;
  const double elements = elements_[end] - elements_[begin] + (lone_head ? tied_ : 0);
  const double boundary = boundary_bytes(model_, plan_, samples);  // output and two gradients
  const bool layers =
      recomputes_all(plan_) && plan_.schedule.recompute_unit == plan::RecomputeUnit::layer;
  double working = 0;
  for (std::size_t s = begin; s < end; ++s) {
    double again = plan_.schedule.recompute ? a.saved[s] : 0;
    if (layers && s > begin && model_.segments[s].kind == model::SegmentKind::mlp)
      again += a.saved[s - 1] + boundary;  // the whole layer at a time
    working = std::max(working, a.workspace[s] + again);
  }
  // Per chunk, if all chunks of the rank have equally many micro-batches in flight.
  const double alive =
      plan_.schedule.hosted.on
          ? 0
          : static_cast<double>(order_.in_flight(plan_, stage)) / plan_.schedule.virtual_stages;
  return elements * bytes_per_parameter_ + alive * (a.kept[end] - a.kept[begin]) + 3 * boundary +
         working;
}

}  // namespace rehearse::planner
