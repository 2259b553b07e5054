// Lays sum trees (sum_tree.h) over a cluster's graph. Private to Cluster.
#pragma once
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/cluster/routes/routes.h"
#include "engine/cluster/routes/sum_tree.h"

namespace rehearse::cluster {

class SumTrees {
 public:
  /// ends[k]: the two vertices of cable k. `arithmetic`: by switch that adds, the link to its
  /// NAME/sums. All must outlive this object.
  SumTrees(const std::vector<RouteVertex>& vertices, const std::vector<std::pair<Id, Id>>& ends,
           const std::map<Id, Id>& arithmetic)
      : vertices_(vertices), ends_(ends), arithmetic_(arithmetic) {}
  /// The middle switch between nodes on the longest of these paths; none: it crosses none.
  Id middle(const std::vector<std::vector<Id>>& paths) const;
  /// The tree from `root` to these vertices, along `routes`.
  SumTree below(Id root, std::span<const Id> to, Routes& routes) const;

 private:
  Id end_of(Id link) const {
    const auto& [from, to] = ends_[link / 2];
    return link % 2 == 0 ? to : from;
  }
  std::map<Id, std::set<Id>> branches(const std::vector<std::vector<Id>>& down) const;

  const std::vector<RouteVertex>& vertices_;
  const std::vector<std::pair<Id, Id>>& ends_;
  const std::map<Id, Id>& arithmetic_;
};

}  // namespace rehearse::cluster
