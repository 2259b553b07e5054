// Finds changes of the cluster that would change a decision, and warnings about a plan. Internal to
// engine/planner.
#pragma once
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/plan/plan.h"
#include "engine/planner/search/search.h"

namespace rehearse::planner {

/// One line for each change: links between nodes at half and twice their speed, and more memory.
/// Says which of the best plans would then win.
std::vector<std::string> what_would_change(const job::Job& job, const Search& search,
                                           Evaluator& evaluator);
/// plan_warnings warns about tensor parallelism over links below this bandwidth, that of PCIe 4.0
/// x16: tensor parallelism all-reduces activations after every segment, on the critical path.
inline constexpr double tensor_link_bound = 32e9;  // bytes/s
std::vector<std::string> plan_warnings(const plan::Plan& plan, const cluster::Cluster& cluster);
/// Links on a path between two nodes that are on no path within a node. Looks at the paths of each
/// node to the first device of its two neighbours in the order of nodes.
std::vector<Id> links_between_nodes(const cluster::Cluster& cluster);

}  // namespace rehearse::planner
