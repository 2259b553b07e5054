// What would change a decision, and what to beware of in it. Private to the planner.
#pragma once
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/plan/plan.h"
#include "engine/planner/search.h"

namespace rehearse::planner {

/// Links between nodes half and twice as fast, and more memory: who would win then.
std::vector<std::string> what_would_change(const job::Job& job, const Search& search,
                                           Evaluator& evaluator);
/// Tensor parallelism sums activations after every segment, on the critical path: it wants links
/// faster than PCIe 4.0 x16, whose 32 GB/s is the bound that a warning is given below.
inline constexpr double tensor_link_bound = 32e9;  // bytes/s
std::vector<std::string> plan_warnings(const plan::Plan& plan, const cluster::Cluster& cluster);
/// Links that are on paths between nodes and on none within a node.
std::vector<Id> links_between_nodes(const cluster::Cluster& cluster);

}  // namespace rehearse::planner
