// The planner: which plan trains this model on this cluster fastest, and why (Sun 2026, section
// 3.4; the search over meshes is that of Alpa, Zheng et al. 2022, and Calculon, Isaev et al. 2023,
// with the program's own dry run in place of a cost formula). Candidates are enumerated in a fixed
// order, those that bounds already rule out are pruned, the rest compiled and dry-run; the best few
// are scored again by whatever the caller passes. Deterministic: the same job, profile and options
// give the same decision.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/job/job.h"
#include "engine/plan/decision.h"

namespace rehearse::planner {

/// Plans whose predicted times differ by less than this part of themselves are equally fast: no
/// prediction is better than that.
inline constexpr double plainer_within = 0.0025;

struct PlannerOptions {
  int budget = 0;      // candidates that are compiled and dry-run at most; 0: as many as there are
  int finalists = 16;  // best candidates that are checked in full and scored again
  /// Seconds a step of a finalist; empty, or not a number for one of them: the dry run's. The CLI
  /// passes a fluid simulation.
  std::function<double(const plan::Plan&)> rescore = {};
  std::function<void(int done, int total)> progress = {};
  bool prune = true;  // false: compile whatever fits into memory, to check that bounds lose nothing
};

/// The best plan for the job's model on its cluster. What the job's file states in [method] and
/// [train] (batch, precision, optimizer, a mesh) is kept, the rest is decided. A job whose method
/// leaves its plan to the planner (Strategy::planned) may sparsify gradients layer by layer
/// (planner/sparsity.h), any other gets a plan whose mathematics are those of plain training. Of
/// plans that differ by less than `plainer_within`, the one with the fewest mechanisms is taken.
/// Throws InputError that names the binding constraint and the nearest feasible change when no plan
/// fits.
plan::Decision decide(const job::Job& job, const costs::Profile* profile,
                      const PlannerOptions& options);

/// The decision as text for people: each choice with its score and runners-up.
std::string explain(const plan::Decision& decision);
/// The plan in a line: "pp 2 x dp 8 x tp 2, zero 1, 8 micro-batches, 1f1b".
std::string summary_of(const plan::Plan& plan);

}  // namespace rehearse::planner
