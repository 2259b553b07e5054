#include "cli/commands/plan/plan_picture.h"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "engine/base/files/files.h"
#include "engine/base/names.h"
#include "engine/planner/exchange/sparsity.h"
#include "engine/planner/placement/rank_grid.h"
#include "study/load.h"

namespace rehearse::cli {
namespace {

using Json = nlohmann::ordered_json;

/// The pipeline stage of each rank of the mesh.
std::map<Id, int> stage_of_ranks(const plan::Plan& plan) {
  const planner::RankGrid grid(plan);
  std::map<Id, int> out;
  for (int p = 0; p < plan.mesh.pp; ++p)
    for (int d = 0; d < plan.mesh.dp; ++d)
      for (int c = 0; c < plan.mesh.cp; ++c)
        for (int t = 0; t < plan.mesh.tp; ++t) out[grid.rank(p, d, t, c)] = p;
  return out;
}

Json nodes_json(const job::Job& job) {
  const plan::Plan& plan = job.plan;
  const std::map<Id, int> stage = stage_of_ranks(plan);
  std::map<Id, Id> rank_on;  // servers have no stage and are not drawn
  for (const auto& [rank, unused] : stage) rank_on[plan.placement.rank_to_device[rank]] = rank;
  std::map<Id, Json> nodes;
  for (Id d = 0; d < job.cluster.devices().size(); ++d) {
    const cluster::Device& device = job.cluster.devices()[d];
    const auto slash = device.name.find('/');
    Json& node = nodes[device.node];
    if (node.is_null()) node = {{"name", device.name.substr(0, slash)}, {"devices", Json::array()}};
    const auto rank = rank_on.find(d);
    Json one{{"name", device.name}, {"kind", job.cluster.kind_of(d).name}};
    one["rank"] = rank == rank_on.end() ? Json(nullptr) : Json(rank->second);
    one["stage"] = rank == rank_on.end() ? Json(nullptr) : Json(stage.at(rank->second));
    node["devices"].push_back(std::move(one));
  }
  Json out = Json::array();
  for (auto& [id, node] : nodes) out.push_back(std::move(node));
  return out;
}

Json layers_json(const job::Job& job, const costs::Profile* profile) {
  const plan::Plan& plan = job.plan;
  Json out = Json::array();
  for (std::size_t c = 0; c < plan.placement.stages.size() && !plan.exchange.sparse.layers.empty();
       ++c)
    for (Id segment : plan.placement.stages[c]) {
      Json variance = nullptr;
      if (profile != nullptr)
        for (const tensors::LayerVariance& v : profile->variances)
          if (v.model == job.model.name && v.segment == segment)
            variance = planner::variance_of(v, plan);
      out.push_back({{"name", job.model.segments[segment].name},
                     {"stage", c % static_cast<std::size_t>(plan.mesh.pp)},
                     {"density", plan.exchange.sparse.layers[segment].density},
                     {"reduction", name_of(plan.exchange.sparse.layers[segment].reduction)},
                     {"variance", std::move(variance)}});
    }
  return out;
}

/// One text per stage: "first segment .. last segment" of each model chunk that the stage holds.
Json stages_json(const job::Job& job) {
  const plan::Plan& plan = job.plan;
  std::vector<std::string> out(static_cast<std::size_t>(plan.mesh.pp));
  for (std::size_t c = 0; c < plan.placement.stages.size(); ++c) {
    std::string& text = out[c % out.size()];
    if (!text.empty()) text += ", ";
    text += job.model.segments[plan.placement.stages[c].front()].name + " .. " +
            job.model.segments[plan.placement.stages[c].back()].name;
  }
  return out;
}

}  // namespace

Json placement_json(const job::Job& job, const costs::Profile* profile) {
  return {{"schema_version", 1},
          {"placement",
           {{"cluster", job.cluster.name()},
            {"nodes", nodes_json(job)},
            {"stages", stages_json(job)},
            {"layers", layers_json(job, profile)}}}};
}

std::vector<std::string> plan_pictures(const job::Job& job, const study::Rehearsal& against,
                                       const TemporaryFolder& folder, const std::string& trace) {
  write_file(folder.file("placement.json"),
             placement_json(job, study::profile_of(job)).dump(2) + "\n");
  std::vector<std::string> out{folder.file("placement.json")};
  if (const study::Baseline* best = best_baseline(against))
    out.push_back(
        fmt::format("before ({})={}{}.json", best->method, baseline_traces(folder), best->method));
  out.push_back("after (the plan)=" + trace);
  return out;
}

std::string baseline_traces(const TemporaryFolder& folder) { return folder.file("before-"); }

}  // namespace rehearse::cli
