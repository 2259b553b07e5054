#include "engine/planner/search/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/base/units.h"
#include "engine/cluster/disturbance.h"
#include "engine/planner/placement/rank_grid.h"

namespace rehearse::planner {
namespace {

/// Seconds without contention, which only compare with those of other dry runs.
std::string time_text(double seconds) { return to_text(Seconds(seconds)) + " by the dry run"; }

constexpr std::size_t most_tried = 6;  // plans to compare under each change

/// The chosen plan, then the fastest plans of other meshes, dense and sparse ones apart, best
/// first.
std::vector<Id> best_of_meshes(const Search& search) {
  std::vector<Id> order;
  for (Id i = 0; i < search.scored.size(); ++i)
    if (search.scored[i].state == Scored::State::scored) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](Id a, Id b) { return search.scored[a].seconds < search.scored[b].seconds; });
  const Id chosen = search.finalists.front();
  std::vector<Id> out{chosen};
  const auto& plans = search.candidates.plans;
  const auto shape = [&](Id i) {
    return std::pair(mesh_text(plans[i]), plans[i].exchange.sparse.layers.empty());
  };
  std::set<std::pair<std::string, bool>> shapes{shape(chosen)};
  for (const Id i : order)
    if (out.size() < most_tried && shapes.insert(shape(i)).second) out.push_back(i);
  return out;
}

/// Says which of `tried` is fastest if the given links take `factor` times as long.
std::string with_other_links(const job::Job& job, const Search& search,
                             const std::vector<Id>& tried, const std::vector<Id>& links,
                             double factor, const costs::Profile* profile) {
  std::vector<double> slow = link_slowdowns(job.disturb, job.cluster);
  slow.resize(job.cluster.links().size(), 1.0);
  for (const Id link : links) slow[link] *= factor;
  Evaluator evaluator(job.model, job.cluster, profile, slow,
                      rank_slowdowns(job.disturb, job.plan.placement.rank_to_device.size()));
  Id best = none;
  double least = 0;
  for (const Id i : tried)
    if (const double seconds = evaluator.seconds(search.candidates.plans[i]);
        best == none || seconds < least)
      best = i, least = seconds;
  const char* how = factor > 1 ? "half" : "twice";
  if (best == tried.front())
    return fmt::format(
        "links between nodes {} as fast: this plan, of the best ones of each mesh, in {}", how,
        time_text(least));
  return fmt::format("links between nodes {} as fast: {} in {}", how,
                     summary_of(search.candidates.plans[best]), time_text(least));
}

}  // namespace

std::vector<Id> links_between_nodes(const cluster::Cluster& cluster) {
  std::map<Id, std::vector<Id>> nodes;
  for (Id d = 0; d < cluster.devices().size(); ++d) nodes[cluster.devices()[d].node].push_back(d);
  if (nodes.size() < 2) return {};
  std::vector<const std::vector<Id>*> list;
  for (const auto& [node, devices] : nodes) list.push_back(&devices);
  std::set<Id> within, between;
  for (std::size_t n = 0; n < list.size(); ++n) {
    for (const Id a : *list[n]) {
      for (const Id b : *list[n])
        if (a != b)
          for (const Id link : cluster.path(a, b)) within.insert(link);
      for (const Id b : {list[(n + 1) % list.size()]->front(), list[n > 0 ? n - 1 : 1]->front()}) {
        for (const Id link : cluster.path(a, b)) between.insert(link);
        for (const Id link : cluster.path(b, a)) between.insert(link);
      }
    }
  }
  std::vector<Id> out;
  std::set_difference(between.begin(), between.end(), within.begin(), within.end(),
                      std::back_inserter(out));
  return out;
}

std::vector<std::string> what_would_change(const job::Job& job, const Search& search,
                                           Evaluator& evaluator) {
  std::vector<std::string> out;
  const std::vector<Id> tried = best_of_meshes(search);
  if (const auto links = links_between_nodes(job.cluster); !links.empty())
    for (const double factor : {2.0, 0.5})
      out.push_back(with_other_links(job, search, tried, links, factor, evaluator.profile()));
  // The fastest plan that needs more memory than there is.
  Id best = none;
  for (Id i = 0; i < search.scored.size(); ++i) {
    const Scored& s = search.scored[i];
    if (s.state == Scored::State::too_large && s.memory.share < 2 &&
        s.seconds < search.scored[search.finalists.front()].seconds &&
        (best == none || s.seconds < search.scored[best].seconds))
      best = i;
  }
  if (best != none) {
    const plan::Plan& larger = search.candidates.plans[best];
    const MemoryNeed need = evaluator.memory(evaluator.link_fully(larger), larger);
    const double capacity = static_cast<double>(need.capacity),
                 lacking = static_cast<double>(need.bytes + need.reserve) - capacity;
    // Rounded up: with this much more it fits.
    const double unit = std::pow(10, std::floor(std::log10(std::max(lacking, 1.0))) - 1);
    out.push_back(fmt::format("{} more memory on {}, beside {}: {} in {}",
                              to_text(Bytes(unit * std::ceil(lacking / unit))), need.kind,
                              to_text(Bytes(capacity)), summary_of(larger),
                              time_text(search.scored[best].seconds)));
  }
  return out;
}

std::vector<std::string> plan_warnings(const plan::Plan& plan, const cluster::Cluster& cluster) {
  if (plan.mesh.tp == 1) return {};
  const RankGrid at(plan);
  double slowest = tensor_link_bound;
  Id from = none, to = none;
  for (int s = 0; s < plan.mesh.pp; ++s)
    for (int d = 0; d < plan.mesh.dp; ++d)
      for (int t = 1; t < plan.mesh.tp; ++t) {
        const Id a = plan.placement.rank_to_device[at.rank(s, d, t - 1)],
                 b = plan.placement.rank_to_device[at.rank(s, d, t)];
        if (a == b) continue;
        if (const double rate = cluster.bandwidth(a, b).value; rate < slowest)
          slowest = rate, from = a, to = b;
      }
  if (from == none) return {};
  return {
      fmt::format("tensor parallelism over a slow link: {} to {} has {}, below {} an all-reduce "
                  "after every segment costs more than it saves on most models",
                  cluster.devices()[from].name, cluster.devices()[to].name,
                  to_text(BytesPerSecond(slowest)), to_text(BytesPerSecond(tensor_link_bound)))};
}

}  // namespace rehearse::planner
