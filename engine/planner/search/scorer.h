// What a search learns about its candidates, one at a time: lower bounds, dry runs, full links and
// simulations. Which candidate is worth which of these, planner.cpp decides. Internal to
// engine/planner.
#pragma once
#include <vector>

#include "engine/base/refusal.h"
#include "engine/planner/search/bounds.h"
#include "engine/planner/search/contention_guess.h"
#include "engine/planner/search/evaluator.h"
#include "engine/planner/search/search.h"

namespace rehearse::planner {

class Scorer {
 public:
  /// The first three must outlive this object. `wide`: as in candidates().
  Scorer(const job::Job& job, const costs::Profile* profile, const PlannerOptions& options,
         bool wide);

  /// What is known of candidate i.
  Scored& at(Id i) { return search.scored[i]; }
  bool is_scored(Id i) { return at(i).state == Scored::State::scored; }
  const plan::Plan& plan(Id i) const { return search.candidates.plans[i]; }
  /// Adds a prepared candidate, of which nothing is known yet.
  Id append(plan::Plan prepared);
  /// Adds a prepared candidate and dry-runs it.
  void add(plan::Plan prepared) { score(append(std::move(prepared))); }

  // False: the candidate is refused or does not fit into memory.
  /// Computes the fast bounds of memory and time.
  bool bound_fast(Id i);
  /// Computes the better bound of the time.
  bool bound_well(Id i);
  void score(Id i);
  /// Links candidate i in full, with race check and memory plan, also of the hosts.
  bool links(Id i);
  /// Scores candidate i with PlannerOptions::rescore. False too for NaN: it was not simulated.
  bool simulate(Id i);

  /// Candidates with a dry run that fit, fastest first.
  std::vector<Id> scored_in_order();

  Search search = {};
  const std::vector<double> pace;  // by rank: how many times as long its ops take
  Bounds bounds;
  Evaluator evaluator;
  ContentionGuess guess = {};

 private:
  /// Calls f for candidate i. If f throws Refused, notes the reason and returns false: the search
  /// goes on without this candidate. A ProgramError counts as a bug of ours and is reported as one.
  template <class F>
  bool attempt(Id i, F f);
  /// Notes the candidate's memory need. Returns whether it fits.
  bool fits(Id i, const MemoryNeed& need);

  const cluster::Cluster& cluster_;
  const PlannerOptions& options_;
  std::vector<Id> dry_run_ = {};  // candidates
};

}  // namespace rehearse::planner
