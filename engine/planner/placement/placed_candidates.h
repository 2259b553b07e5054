// Adds candidates whose devices, stages and shares `place` chose (eq. 1). All candidates before
// these use devices in order and stages of equal work. Internal to engine/planner.
#pragma once
#include "engine/costs/profile.h"
#include "engine/job/job.h"
#include "engine/planner/search/scorer.h"

namespace rehearse::planner {

/// The largest world size for which plans are placed, and the search is wide at once, because both
/// take too long with more.
constexpr std::size_t most_placed = 128;

/// Adds one candidate for the best plan of each of eight meshes. On unlike devices, a placed
/// pipeline may be far faster than the same pipeline in order, which its bound may have excluded.
/// So there, also adds the pipelines with the best estimates.
void add_placed_candidates(const job::Job& job, const costs::Profile* profile, Scorer& scorer);

}  // namespace rehearse::planner
