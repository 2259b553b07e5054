// Placement (Sun 2026, section 3.2): which segments form which pipeline stage, which device plays
// which rank, and how many samples each replica takes. Eq. 1 prices a seam between layers l and l+1
// at c_l x d(pi(l), pi(l+1)): bytes times the shortest-path distance in seconds a byte, the edges
// of the cluster graph weighing 1 / bandwidth. The search starts from a greedy assignment of our
// own, because ranks talk in rings too; what follows is exact where the instance is small. The
// paper's greedy co-location (colocate.h) is computed to be compared with.
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

struct Placement {
  std::vector<Id> rank_to_device = {};
  std::vector<std::vector<Id>> stages = {};  // segments of each model chunk, as in Plan
  std::vector<int> shares = {};              // samples of a micro-batch by dp rank; empty: equal
  double cost = 0;  // eq. 1 of this placement, summed over all ranks that talk, seconds a step
  // How the devices were found: eq. 1's value as greedy_assignment leaves it, after local search,
  // and the optimum where the instance is small enough to prove it.
  double greedy = 0, local = 0;
  std::optional<double> exact = {};
  // Eq. 1 as printed, of the seams between layers alone: of this placement, over its replicas, and
  // of one copy of the model by the paper's co-location (worlds whose distances have a table).
  double seams = 0;
  std::optional<double> colocated = {};
  double seconds = 0;  // estimated step time that this placement was chosen by (estimate.h)
  bool fits = true;    // by the estimate of memory; false: found without its limits
};

/// The best placement of a mesh. `mesh` states pp, dp, tp, order, virtual_stages, micro_batches,
/// global_batch, precision, zero, recompute, optimizer and, in rank_to_device, which devices may be
/// used (empty: all of the cluster; there may be more than ranks); its stages and shares are
/// ignored. Unequal shares are chosen only when `unequal`, and where the mesh has no equal ones: a
/// method has to know how to weigh them. Stages are kept within what plans may use of each device
/// where that is possible. `pace`: by rank as in Costs. Deterministic. Throws Refused when the
/// mesh fits neither the model nor the devices.
Placement place(const model::ModelSpec& model, const cluster::Cluster& cluster,
                const plan::Plan& mesh, const costs::Profile* profile, bool unequal = true,
                std::span<const double> pace = {});
/// All that were compared, best first: for a planner that dry-runs the first few.
std::vector<Placement> placements(const model::ModelSpec& model, const cluster::Cluster& cluster,
                                  const plan::Plan& mesh, const costs::Profile* profile,
                                  bool unequal = true, std::span<const double> pace = {});

/// Eq. 1's values and how far greedy and local search are from the optimum, in a line.
std::string gap_text(const Placement& placement);

}  // namespace rehearse::planner
