#include "engine/methods/lowering/stage/layer_exchange.h"

#include <algorithm>
#include <map>

#include "engine/base/refusal.h"
#include "engine/program/packets.h"

namespace rehearse::methods {
namespace {

plan::Reduction uniform(const plan::Plan& plan) {
  return plan.exchange.sparse.reduction.value_or(plan::Reduction::dense);
}

std::vector<std::vector<Id>> replicas(const program::Program& program) {
  return groups_of(program, {.group = {.axes = data_axes(program)}});
}

Id find_channel(const program::Program& program, const std::string& name) {
  for (Id c = 0; c < program.channels.size(); ++c)
    if (program.channels[c].name == name) return c;
  return none;
}

}  // namespace

bool uses(const plan::Plan& plan, plan::Reduction reduction) {
  if (plan.exchange.sparse.layers.empty()) return uniform(plan) == reduction;
  return std::any_of(
      plan.exchange.sparse.layers.begin(), plan.exchange.sparse.layers.end(),
      [&](const plan::LayerExchange& layer) { return layer.reduction == reduction; });
}
bool chooses(const plan::Plan& plan) {
  return uses(plan, plan::Reduction::sparse) || uses(plan, plan::Reduction::two_level);
}

BucketExchange exchange_of(const Stage& stage, const Bucket& bucket) {
  const plan::Plan& plan = stage.plan();
  if (!stage.dp()) return {};
  plan::LayerExchange layer{.density = plan.exchange.sparse.density,
                            .reduction = uniform(plan),
                            .coding = plan.exchange.sparse.coding.value_or(
                                program::codings_of(plan.exchange.sparse.selector).front())};
  if (!plan.exchange.sparse.layers.empty()) {
    const auto& segments = stage.model().segments;
    const auto uses_it = [&](const model::Segment& s) {
      return std::find(s.groups.begin(), s.groups.end(), bucket.groups.front()) != s.groups.end();
    };
    layer = plan.exchange.sparse.layers.at(static_cast<std::size_t>(
        std::find_if(segments.begin(), segments.end(), uses_it) - segments.begin()));
  }
  const std::int64_t n = bucket.begin.back();
  return {.reduction = layer.reduction,
          .kernel = {.kind = program::KernelKind::select,
                     .of = n,
                     .keep = program::entries_kept(n, layer.density),
                     .selector = plan.exchange.sparse.selector,
                     .feedback = plan.exchange.sparse.feedback,
                     .coding = layer.coding,
                     .draw = plan.exchange.sparse.selector == program::Selector::random_k
                                 ? bucket.groups.front()
                                 : 0}};
}

std::vector<Id> node_leaders(const plan::Plan& plan, const program::Program& program) {
  if (!data_axes(program)) return {};
  if (plan.placement.node_of.size() != static_cast<std::size_t>(plan.mesh.world_size()))
    refuse("reduction", "two_level", "needs to know the node of every rank");
  std::vector<Id> leader(plan.placement.node_of.size(), none);
  for (const auto& group : replicas(program)) {
    std::map<Id, Id> lowest;  // by node
    for (const Id rank : group)
      leader[rank] = lowest.try_emplace(plan.placement.node_of[rank], rank).first->second;
  }
  return leader;
}

program::Axes node_axis(const Stage& stage) {
  return program::Axes{2} << stage.program().mesh.size();
}
program::Axes leader_axis(const Stage& stage) {
  return program::Axes{4} << stage.program().mesh.size();
}

Id node_channel(Stage& stage, const std::string& name) {
  program::Program& p = stage.program();
  if (const Id known = find_channel(p, name); known != none) return known;
  return channel(p, name, {.axes = node_axis(stage), .colour = node_leaders(stage.plan(), p)});
}

Id leader_channel(Stage& stage) {
  program::Program& p = stage.program();
  if (const Id known = find_channel(p, "leaders"); known != none) return known;
  const std::vector<Id> leaders = node_leaders(stage.plan(), p);
  std::vector<Id> colour(leaders.size(), none);
  for (const auto& group : replicas(p))
    for (const Id rank : group)
      if (leaders[rank] == rank) colour[rank] = group.front();
  return channel(p, "leaders", {.axes = leader_axis(stage), .colour = std::move(colour)});
}

void check_copies(const Stage& stage, const Bucket& bucket) {
  const program::Program& p = stage.program();
  const Id tied = bucket.tied ? find_channel(p, "tied") : none;
  if (!stage.tp() && tied == none) return;
  const auto& node_of = stage.plan().placement.node_of;
  // [rank]: for each rank of its group, the position of the first rank on the same node.
  std::map<Id, std::vector<std::ptrdiff_t>> shape;
  for (const auto& group : replicas(p)) {
    std::vector<std::ptrdiff_t> firsts;
    for (const Id rank : group)
      firsts.push_back(std::find_if(group.begin(), group.end(),
                                    [&](Id other) { return node_of[other] == node_of[rank]; }) -
                       group.begin());
    for (const Id rank : group) shape[rank] = firsts;
  }
  const auto alike = [&](const std::vector<std::vector<Id>>& all) {
    for (const auto& copies : all)
      for (const Id copy : copies)
        if (shape[copy] != shape[copies.front()]) return false;
    return true;
  };
  if (stage.tp() && !alike(groups_of(p, {.group = {.axes = stage.tp()}})))
    refuse("reduction", "two_level",
           "tensor ranks lie differently on nodes, so that what they all "
           "hold would be summed differently; keep them on one node, or use sparse or dense");
  if (tied != none && !alike(groups_of(p, p.channels[tied])))
    refuse("reduction", "two_level",
           "the stages that share the word embedding lie differently on "
           "nodes, so that their copies would be summed differently; use sparse or dense for it");
}

}  // namespace rehearse::methods
