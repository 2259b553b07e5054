// The planner: finds the plan that trains a model on a cluster fastest, and says why (Sun 2026,
// section 3.4). The search over meshes follows Alpa (Zheng et al. 2022) and Calculon (Isaev et al.
// 2023), but it scores a plan by the dry run of its program, not by a cost formula.
//
//     candidates.h   all plans, in a fixed order; if none fits, more that save memory
//          | lower bounds of memory and time (bounds.h); drops what does not fit
//     evaluator.h    compile and dry-run, smallest bound first; prunes by the finalists' times
//          | adds the best plan of each mesh with placed ranks (placement.h)
//          | adds plans with sparse exchanges, for planned methods only (sparse_candidates.h)
//     finalists      link in full: race check, memory plan
//          | PlannerOptions::rescore, e.g. a simulation with contention
//          | simulates more candidates that could be faster (contention_guess.h)
//     decision       the plainest of the fastest plans (plainer_within)
//
// Deterministic: the same job, profile and options give the same decision.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/job/job.h"
#include "engine/plan/decision.h"

namespace rehearse::planner {

/// Two plans count as equally fast when their predicted times differ by less than this fraction,
/// because predictions are no more exact than that.
inline constexpr double plainer_within = 0.0025;

struct PlannerOptions {
  int budget = 0;      // most candidates to compile and dry-run; 0: no limit
  int finalists = 16;  // number of best candidates to link in full and score again
  /// Seconds per step of a finalist. If it is empty, or NaN for one finalist, all finalists keep
  /// the dry run's times. The CLI passes a fluid simulation.
  std::function<double(const plan::Plan&)> rescore = {};
  std::function<void(int done, int total)> progress = {};  // called for each candidate
  bool prune = true;  // false: dry-run all that fits into memory (to test the bounds)
};

/// The fastest plan for the job's model on its cluster. Keeps what the job's file states in
/// [method] and [train] (batch, precision, optimizer, mesh sizes, ...) and decides the rest. Drops
/// what only other methods read (methods::drop_own_fields). If the
/// method leaves its plan to the planner (Strategy::planned), the plan may send sparse gradients,
/// layer by layer (planner/sparsity.h). Otherwise the plan computes the same results as plain
/// training. Among plans that differ by less than `plainer_within`, takes the one with the fewest
/// mechanisms (pipeline, ZeRO level, recomputation, ...). Throws InputError when no plan fits; the
/// message names the binding constraint and the nearest feasible change.
plan::Decision decide(const job::Job& job, const costs::Profile* profile,
                      const PlannerOptions& options);

/// The decision as text: each choice with its score and its runners-up.
std::string explain(const plan::Decision& decision);
/// The plan in one line: "pp 2 x dp 8 x tp 2, 8 micro-batches, 1f1b, ZeRO-1".
std::string summary_of(const plan::Plan& plan);
/// The schedule of its pipeline: "1f1b", "zb-h1".
std::string schedule_text(const plan::Plan& plan);
/// What a step of `seconds` is beside the chosen plan's: "12.0% slower", "as fast", or, where only
/// the simulation knows why it was not chosen, "1.0% faster without contention".
std::string slower_text(double seconds, double chosen);

}  // namespace rehearse::planner
