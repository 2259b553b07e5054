// Placement (Sun 2026, section 3.2): decides which segments form which pipeline stage, which device
// each rank runs on, and how many samples each replica takes.
//
// Eq. 1 prices the traffic between layers l and l + 1 at c_l x d(pi(l), pi(l + 1)): bytes times the
// distance of their devices. The distance is the shortest path in the cluster graph with edge
// weights 1 / bandwidth, in seconds per byte. The search starts from our own greedy assignment,
// which also counts the rings of tensor groups and replicas. Local search improves it, and small
// instances are solved exactly (assignment.h). The paper's greedy co-location (colocate.h) is
// computed for comparison only.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::planner {

/// Costs are values of eq. 1 in seconds per step.
struct Placement {
  std::vector<Id> rank_to_device = {};
  std::vector<std::vector<Id>> stages = {};  // by model chunk: its segments, as in plan::Placement
  std::vector<int> shares = {};              // by dp rank: samples of a micro-batch; empty: equal
  double cost = 0;  // of this placement, over all pairs of ranks that communicate
  /// Cost after greedy_assignment, and after local search. Without a table of distances: the cost
  /// in device order.
  double greedy = 0, local = 0;
  std::optional<double> exact = {};  // the optimum; none: the instance is too large
  double seams = 0;  // eq. 1 as printed (traffic between layers only), over all replicas
  /// The same for one copy of the model that the paper's co-location places. None: no table of
  /// distances.
  std::optional<double> colocated = {};
  double seconds = 0;  // estimated step time (estimate.h); placements are compared by it
  bool fits = true;    // false: no placement fits by the memory estimate; found without limits
};

/// The best placement of a mesh. Deterministic. Throws Refused when the mesh does not fit the model
/// or has more ranks than there are devices.
///
/// `mesh`: a plan; its stages, shares and layers are ignored. placement.rank_to_device lists the
/// devices to use (empty: all of the cluster; may be more than ranks). `unequal`: the shares may be
/// unequal, also when equal shares do not divide the batch (the method must support unequal
/// shares). `pace`: by rank, as in costs::Costs. Stages stay within the usable memory of each
/// device if that is possible.
Placement place(const model::ModelSpec& model, const cluster::Cluster& cluster,
                const plan::Plan& mesh, const costs::Profile* profile, bool unequal = true,
                std::span<const double> pace = {});
/// All placements that were compared, best first.
std::vector<Placement> placements(const model::ModelSpec& model, const cluster::Cluster& cluster,
                                  const plan::Plan& mesh, const costs::Profile* profile,
                                  bool unequal = true, std::span<const double> pace = {});

/// One line with the values of eq. 1, and how far greedy and local search are from the optimum.
std::string gap_text(const Placement& placement);

}  // namespace rehearse::planner
