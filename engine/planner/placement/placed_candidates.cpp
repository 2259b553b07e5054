#include "engine/planner/placement/placed_candidates.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/methods/strategy.h"
#include "engine/planner/exchange/sparsity.h"
#include "engine/planner/placement/placement.h"

namespace rehearse::planner {
namespace {

/// Number of meshes whose best plan is placed.
constexpr std::size_t meshes_placed = 8;
/// On unlike devices: with how many numbers of micro-batches a pipeline is placed, and how many of
/// all these placements are dry-run.
constexpr std::size_t variants_placed = 8, pipelines_placed = 24;

class Placing {
 public:
  Placing(const job::Job& job, const costs::Profile* profile, Scorer& scorer)
      : job_(job), profile_(profile), scorer_(scorer) {}

  void run() {
    const std::vector<Family> pipelines =
        unlike_devices() ? promising_pipelines() : std::vector<Family>();
    std::set<std::string> meshes;
    for (const Id i : scorer_.scored_in_order()) {
      if (meshes.size() == meshes_placed) break;
      if (!meshes.insert(mesh_text(scorer_.plan(i))).second) continue;
      if (const auto found = placement_of(i)) add(i, *found);
    }
    std::vector<std::pair<Placement, const Family*>> placed;
    for (const Family& family : pipelines)
      if (auto found = placement_of(family.begin()->second))
        placed.emplace_back(*std::move(found), &family);
    std::ranges::stable_sort(placed, {}, [](const auto& one) { return one.first.seconds; });
    if (placed.size() > pipelines_placed) placed.resize(pipelines_placed);
    for (const auto& [found, family] : placed)
      for (const auto& [variant, i] : *family) add(i, found);
  }

 private:
  bool unlike_devices() const {
    const std::vector<Id>& used = job_.plan.placement.rank_to_device;
    const auto kind = [&](Id device) { return job_.cluster.devices()[device].kind; };
    return !scorer_.pace.empty() ||
           std::ranges::any_of(used, [&](Id device) { return kind(device) != kind(used.front()); });
  }

  /// Pipelines of one mesh, order of axes and number of micro-batches, interleaved or not, which
  /// one placement suits: by method, and with states divided (ZeRO) or whole, the candidate with
  /// the least bound.
  using Family = std::map<std::pair<std::string, bool>, Id>;

  double least_bound(const Family& family) const {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [variant, i] : family) least = std::min(least, scorer_.at(i).bound);
    return least;
  }

  /// Of each mesh and order with a pipeline, interleaved or not, those with the least bounds.
  std::vector<Family> promising_pipelines() const {
    std::map<std::tuple<std::string, std::string, bool>, std::map<int, Family>> pipelines;
    for (Id i = 0; i < scorer_.search.scored.size(); ++i) {
      const plan::Plan& p = scorer_.plan(i);
      const Scored::State state = scorer_.at(i).state;
      if (p.mesh.pp == 1 || state == Scored::State::refused || state == Scored::State::too_large)
        continue;
      Family& family = pipelines[{mesh_text(p), p.mesh.order, p.schedule.virtual_stages > 1}]
                                [p.schedule.micro_batches];
      const auto [it, first] = family.try_emplace({p.method, p.exchange.sharding.zero > 0}, i);
      if (!first && scorer_.at(i).bound < scorer_.at(it->second).bound) it->second = i;
    }
    std::vector<Family> out;
    for (const auto& [pipeline, families] : pipelines) {
      std::vector<Family> best;
      for (const auto& [micro_batches, family] : families) best.push_back(family);
      std::ranges::stable_sort(best, {}, [&](const Family& f) { return least_bound(f); });
      if (best.size() > variants_placed) best.resize(variants_placed);
      out.insert(out.end(), best.begin(), best.end());
    }
    return out;
  }

  /// None: no placement fits, or the job cuts stages by layers, which eq. 1 does not.
  std::optional<Placement> placement_of(Id i) const {
    const plan::Plan& plan = scorer_.plan(i);
    if (plan.placement.partition == plan::Partition::layers) return std::nullopt;
    auto found = unless_refused([&] {
      return place(job_.model, job_.cluster, plan, profile_, !plan.schedule.shares.empty(),
                   scorer_.pace);
    });
    return found ? std::optional(*std::move(found)) : std::nullopt;
  }

  /// Adds candidate i with the placement, unless there is such a candidate.
  void add(Id i, const Placement& found) {
    plan::Plan placed = scorer_.plan(i);
    scorer_.search.placements[mesh_text(placed)] = gap_text(found);
    placed.placement.rank_to_device = found.rank_to_device;
    placed.placement.stages = found.stages;
    placed.schedule.shares = found.shares;
    placed.placement.node_of = nodes_of(placed, job_.cluster);
    if (std::ranges::any_of(scorer_.search.candidates.plans, [&](const plan::Plan& other) {
          return other.schedule == placed.schedule && other.mesh == placed.mesh &&
                 other.exchange == placed.exchange &&
                 other.placement.rank_to_device == placed.placement.rank_to_device &&
                 other.placement.stages == placed.placement.stages;
        }))
      return;
    auto ready = unless_refused([&] { return methods::prepare(std::move(placed), job_.model); });
    if (ready) scorer_.add(*std::move(ready));
  }

  const job::Job& job_;
  const costs::Profile* profile_;
  Scorer& scorer_;
};

}  // namespace

void add_placed_candidates(const job::Job& job, const costs::Profile* profile, Scorer& scorer) {
  Placing(job, profile, scorer).run();
}

}  // namespace rehearse::planner
