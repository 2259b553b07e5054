#include "study/prediction/device_work.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <tuple>
#include <vector>

#include "engine/base/table.h"
#include "engine/planner/placement/rank_grid.h"

namespace rehearse::study {
namespace {

/// "embedding .. L3.mlp", of each model chunk of the stage.
std::string segments_text(const plan::Plan& plan, const model::ModelSpec& model, int stage) {
  std::vector<std::string> chunks;
  const auto& all = plan.placement.stages;
  for (auto c = static_cast<std::size_t>(stage); c < all.size();
       c += static_cast<std::size_t>(plan.mesh.pp))
    chunks.push_back(fmt::format("{} .. {}", model.segments[all[c].front()].name,
                                 model.segments[all[c].back()].name));
  constexpr std::size_t most = 2;
  const bool cut = chunks.size() > most;
  if (cut) chunks.resize(most);
  return fmt::format("{}{}", fmt::join(chunks, ", "), cut ? ", ..." : "");
}

}  // namespace

std::string device_work_text(const plan::Plan& plan, const model::ModelSpec& model,
                             const cluster::Cluster& cluster) {
  const planner::RankGrid grid(plan);
  std::map<std::tuple<int, int, std::string>, int> devices;  // by stage, -samples, kind
  for (int stage = 0; stage < plan.mesh.pp; ++stage)
    for (int replica = 0; replica < plan.mesh.dp; ++replica)
      for (int context = 0; context < plan.mesh.cp; ++context)
        for (int shard = 0; shard < plan.mesh.tp; ++shard) {
          const Id rank = grid.rank(stage, replica, shard, context);
          const Id device = plan.placement.rank_to_device[rank];
          ++devices[{stage, -plan.samples(replica), cluster.kind_of(device).name}];
        }
  if (devices.size() < 2) return "";
  std::vector<std::vector<std::string>> rows{
      {"stage", "segments", "devices", "kind", "samples of a micro-batch"}};
  constexpr std::size_t most_rows = 17;
  int last = -1;
  for (const auto& [key, count] : devices) {
    const auto& [stage, samples, kind] = key;
    if (rows.size() == most_rows && devices.size() > most_rows) {
      rows.push_back({"...", "as in the plan file"});
      break;
    }
    rows.push_back({stage == last ? "" : fmt::format("{}", stage),
                    stage == last ? "" : segments_text(plan, model, stage),
                    fmt::format("{}", count), kind, fmt::format("{}", -samples)});
    last = stage;
  }
  return "\n" + table(rows);
}

}  // namespace rehearse::study
