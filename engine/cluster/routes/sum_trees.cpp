#include "engine/cluster/routes/sum_trees.h"

#include <fmt/format.h>

#include <ranges>

#include "engine/base/errors.h"

namespace rehearse::cluster {

Id SumTrees::middle(const std::vector<std::vector<Id>>& paths) const {
  std::vector<Id> longest;
  for (const std::vector<Id>& links : paths)
    if (links.size() > longest.size()) longest = links;
  std::vector<Id> switches;
  for (const Id link : longest)
    if (const Id end = end_of(link); vertices_[end].node == none) switches.push_back(end);
  return switches.empty() ? none : switches[switches.size() / 2];
}

/// The branches below each switch between nodes, as links.
std::map<Id, std::set<Id>> SumTrees::branches(const std::vector<std::vector<Id>>& down) const {
  std::map<Id, std::set<Id>> out;
  for (const std::vector<Id>& way : down)
    for (const Id link : way)
      if (const Id from = end_of(link ^ 1U); vertices_[from].node == none) out[from].insert(link);
  return out;
}

SumTree SumTrees::below(Id root, std::span<const Id> to, Routes& routes) const {
  SumTree tree;
  for (const Id vertex : to)
    if (!routes.find(root, vertex, tree.down.emplace_back()))
      throw InputError(fmt::format("there is no path from {} to {}", vertices_[root].name,
                                   vertices_[vertex].name));
  const auto met = branches(tree.down);
  for (const auto& [vertex, links] : met)
    if (links.size() > 1 && !arithmetic_.contains(vertex))
      return {.cannot = fmt::format("switch {} does not add", vertices_[vertex].name)};
  for (const std::vector<Id>& down : tree.down) {
    std::vector<Id>& up = tree.up.emplace_back();
    for (const Id link : std::views::reverse(down)) {
      up.push_back(link ^ 1U);
      const auto here = met.find(end_of(up.back()));
      if (here != met.end() && here->second.size() > 1) up.push_back(arithmetic_.at(here->first));
    }
  }
  return tree;
}

}  // namespace rehearse::cluster
