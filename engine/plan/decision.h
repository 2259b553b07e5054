// What the planner decided, and why: the plan, the value of every choice with what lost to it, and
// what cannot run at all. A plan file keeps it (docs/plans.md).
#pragma once
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace rehearse::plan {

/// One value that a choice could have taken: the fastest plan found with it, everything else free.
struct Alternative {
  std::string value = {};
  double seconds = 0;    // of the best plan with this value; infinite when none is feasible
  std::string why = {};  // why it lost: "12% slower: 3.1 ms more exposed communication"
};
/// One decision of the plan ("mesh", "micro_batches", ...), its score and what lost to it.
struct Choice {
  std::string name = {};
  std::string value = {};
  double seconds = 0;
  std::vector<Alternative> runners_up = {};  // best first
};
/// A whole plan that lost.
struct RunnerUp {
  Plan plan = {};
  std::string value = {};  // the plan in a line
  double seconds = 0;
  std::string why = {};
};
/// Candidates that cannot run, by the constraint that binds.
struct Infeasible {
  std::string constraint = {};
  int candidates = 0;
  std::string nearest = {};  // the smallest change that would make one of them feasible
};

struct Decision {
  Plan plan = {};  // complete: compiles as it stands
  /// The fastest that sums every gradient whole, the plan itself where it does: what the adaptive
  /// method warms up under, while variances are measured.
  Plan warm_up = {};
  double seconds = 0;  // predicted step time: options.rescore's, else the dry run's
  double dry_run_seconds = 0;
  bool rescored = false;        // by options.rescore
  std::string stragglers = {};  // ranks that the job says are slow, and that this is counted on
  std::string placement = {};   // eq. 1 of the plan's mesh, how far greedy is from it; if placed
  std::vector<Choice> choices = {};
  std::vector<RunnerUp> runners_up = {};       // best first
  std::vector<Infeasible> infeasible = {};     // most candidates first
  std::vector<std::string> would_change = {};  // what would change the decision, in words
  std::vector<std::string> warnings = {};
  int candidates = 0;  // enumerated: = pruned + dry_run + infeasible + beyond the budget
  int pruned = 0;      // ruled out by a lower bound of their time
  int dry_run = 0;     // compiled and dry-run
  int beyond_budget = 0;
  int simulations = 0;  // candidates that options.rescore was asked about
};

}  // namespace rehearse::plan
