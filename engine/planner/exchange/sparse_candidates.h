// Adds candidates with sparse gradients: existing plans with each layer's fastest exchange
// (sparsity.h). Internal to engine/planner.
#pragma once
#include "engine/costs/profile.h"
#include "engine/job/job.h"
#include "engine/planner/search/scorer.h"

namespace rehearse::planner {

/// Tries plans in the order of what their steps take about at least: compute alone at first, with
/// the exchanges once these are priced. Ends when that exceeds the finalists' times, or after a
/// number of plans. `enumerated`: how many candidates were enumerated; later ones were placed.
void add_sparse_candidates(const job::Job& job, const costs::Profile* profile,
                           const PlannerOptions& options, Scorer& scorer, Id enumerated);

}  // namespace rehearse::planner
