// What a search has found, and how it is told. Private to the planner.
#pragma once
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/base/errors.h"
#include "engine/planner/candidates.h"
#include "engine/planner/evaluator.h"
#include "engine/planner/planner.h"

namespace rehearse::planner {

struct Scored {
  enum class State : std::uint8_t { open, scored, pruned, too_large, refused, beyond_budget };
  State state = State::open;
  bool finalist = false;
  double bound = 0;
  bool bounded = false;  // the bound is the good one, not the quick one
  double seconds = std::numeric_limits<double>::infinity();  // the dry run's
  double rescored = 0;
  MemoryNeed memory = {};
  std::size_t instances = 0;  // (rank, op) a step, once it was linked in full
  std::string refusal = {};
  bool fault = false;  // refused because its program is wrong, which is our fault
};

struct Search {
  Candidates candidates = {};
  std::vector<Scored> scored = {};  // by candidate
  std::vector<Id> finalists = {};   // best first
  int dry_run = 0, simulations = 0;
  std::map<std::string, std::string> placements = {};  // of a mesh, eq. 1 as gap_text tells it
  bool rescored = false;                               // the finalists, by what the caller passed
};

/// "pp 2 x dp 8 x tp 2".
std::string mesh_text(const plan::Plan& plan);
plan::Decision describe(const job::Job& job, const Search& search, Evaluator& evaluator);
/// Why nothing fits, and the nearest thing that would: `without_a_key`, a change of the job that
/// was searched and found to fit, or, where that is empty, more memory, as much as the plan that
/// needs least was linked to need.
InputError no_plan(const job::Job& job, const Search& search, const Evaluator& evaluator,
                   const std::string& without_a_key);

}  // namespace rehearse::planner
