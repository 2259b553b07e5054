// The state of a search over candidates, and the functions that describe its result. Internal to
// engine/planner.
#pragma once
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/base/errors.h"
#include "engine/planner/planner.h"
#include "engine/planner/search/candidates.h"
#include "engine/planner/search/evaluator.h"

namespace rehearse::planner {

/// What the search knows about one candidate.
struct Scored {
  enum class State : std::uint8_t { open, scored, pruned, too_large, refused, beyond_budget };
  State state = State::open;
  bool finalist = false;
  double bound = 0;  // lower bound of seconds per step
  bool has_full_bound =
      false;  // `bound` is from Bounds::seconds, not only from Bounds::local_seconds
  double seconds = std::numeric_limits<double>::infinity();  // by the dry run
  double rescored = 0;  // by PlannerOptions::rescore, else the dry run's
  MemoryNeed memory = {};
  std::size_t instances = 0;  // (rank, op) pairs per step; known once the plan is linked in full
  std::string refusal = {};
  bool fault = false;  // refused because its program is wrong: a bug of ours
};

struct Search {
  Candidates candidates = {};
  std::vector<Scored> scored = {};  // by candidate
  std::vector<Id> finalists = {};   // best first
  int dry_run = 0, simulations = 0;
  std::map<std::string, std::string> placements = {};  // by mesh_text: gap_text of its placement
  bool rescored = false;  // PlannerOptions::rescore scored all finalists
};

/// "pp 2 x dp 8 x tp 2".
std::string mesh_text(const plan::Plan& plan);
plan::Decision describe(const job::Job& job, const Search& search, Evaluator& evaluator);
/// The error when no plan fits. It names the binding constraint and the nearest change that helps:
/// `without_a_key` (a change of the job that a search found to fit) or, if that is empty, as much
/// memory as the smallest candidate needs.
InputError no_plan(const job::Job& job, const Search& search, Evaluator& evaluator,
                   const std::string& without_a_key);

}  // namespace rehearse::planner
