// The planner's result: the plan it decided on, the alternatives that lost, and the candidates that
// cannot run, with reasons. Plan files store it (docs/plans.md). Times are seconds per step.
#pragma once
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace rehearse::plan {

/// Another value of a choice.
struct Alternative {
  std::string value = {};
  double seconds = 0;    // of the fastest plan with this value; infinite: none is feasible
  std::string why = {};  // why it lost: "12% slower: 3.1 ms more exposed communication"
};
/// A choice of the plan ("mesh", "micro-batches", ...), its value, and the values that lost.
struct Choice {
  std::string name = {};
  std::string value = {};
  double seconds = 0;
  std::vector<Alternative> runners_up = {};  // best first
};
/// A complete plan that lost.
struct RunnerUp {
  Plan plan = {};
  std::string value = {};  // the plan in one line
  double seconds = 0;
  std::string why = {};
};
/// The candidates that cannot run because of one constraint.
struct Infeasible {
  std::string constraint = {};
  int candidates = 0;
  std::string nearest = {};  // the smallest change that would make one of them feasible
};

struct Decision {
  Plan plan = {};  // complete: it can be compiled
  /// The fastest plan that sums all gradients densely; may equal `plan`. Method "adaptive" uses it
  /// during warm-up, while variances are measured.
  Plan warm_up = {};
  double seconds = 0;  // predicted step time, by options.rescore if it is set, else the dry run
  double dry_run_seconds = 0;
  bool rescored = false;        // whether options.rescore was used
  std::string stragglers = {};  // the ranks that the job declares slow; the planner relies on it
  std::string placement = {};   // Sun 2026, eq. 1 for the plan's mesh, and how far the greedy
                                // placement is from it; empty: no placement was searched
  std::vector<Choice> choices = {};
  std::vector<RunnerUp> runners_up = {};       // best first
  std::vector<Infeasible> infeasible = {};     // most candidates first
  std::vector<std::string> would_change = {};  // what would change the decision, in words
  std::vector<std::string> warnings = {};
  int candidates = 0;     // = pruned + dry_run + infeasible + beyond_budget
  int pruned = 0;         // excluded by a lower bound of their time
  int dry_run = 0;        // compiled and dry-run
  int beyond_budget = 0;  // not evaluated, because the budget was spent
  int simulations = 0;    // calls of options.rescore
};

}  // namespace rehearse::plan
