#include "engine/planner/search/scorer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/cluster/disturbance.h"
#include "engine/planner/memory/needs.h"

namespace rehearse::planner {

Scorer::Scorer(const job::Job& job, const costs::Profile* profile, const PlannerOptions& options,
               bool wide)
    : pace(rank_slowdowns(job.disturb, job.plan.placement.rank_to_device.size())),
      bounds(job.model, job.cluster, profile, link_slowdowns(job.disturb, job.cluster), pace),
      evaluator(job.model, job.cluster, profile, link_slowdowns(job.disturb, job.cluster), pace),
      cluster_(job.cluster),
      options_(options) {
  search.candidates = candidates(job, profile, wide);
  search.scored.resize(search.candidates.plans.size());
}

Id Scorer::append(plan::Plan prepared) {
  search.candidates.plans.push_back(std::move(prepared));
  search.scored.emplace_back();
  return static_cast<Id>(search.scored.size()) - 1;
}

template <class F>
bool Scorer::attempt(Id i, F f) {
  try {
    const auto done = unless_refused(f);
    if (done) return true;
    at(i).refusal = done.error().text;
  } catch (const ProgramError& e) {
    at(i).refusal = e.what();
    at(i).fault = true;
  }
  at(i).state = Scored::State::refused;
  return false;
}

bool Scorer::fits(Id i, const MemoryNeed& need) {
  at(i).memory = need;
  if (!need.fits()) at(i).state = Scored::State::too_large;
  return need.fits();
}

bool Scorer::bound_fast(Id i) {
  bool good = false;
  attempt(i, [&] {
    good = fits(i, bounds.memory(plan(i)));
    if (good) at(i).bound = bounds.local_seconds(plan(i));
  });
  return good && at(i).state == Scored::State::open;
}

bool Scorer::bound_well(Id i) {
  return at(i).has_full_bound =
             attempt(i, [&] { at(i).bound = std::max(at(i).bound, bounds.seconds(plan(i))); });
}

void Scorer::score(Id i) {
  dry_run_.push_back(i);
  ++search.dry_run;
  attempt(i, [&] {
    at(i).seconds = evaluator.seconds(plan(i));
    if (fits(i, evaluator.least_memory())) at(i).state = Scored::State::scored;
  });
  if (is_scored(i)) guess.learn_dry_run(plan(i), at(i).bound, at(i).seconds);
}

bool Scorer::links(Id i) {
  bool good = false;
  attempt(i, [&] {
    const link::LinkedProgram linked = evaluator.link_fully(plan(i));
    good = fits(i, evaluator.memory(linked, plan(i)));
    check_hosts(linked, cluster_, plan(i));
    at(i).instances = 0;
    for (const program::Role& role : linked.program.roles)
      at(i).instances += role.ops.size() * role.ranks.size();
  });
  return good;
}

bool Scorer::simulate(Id i) {
  ++search.simulations;
  if (!attempt(i, [&] { at(i).rescored = options_.rescore(plan(i)); })) return false;
  if (std::isnan(at(i).rescored)) return false;
  guess.learn_simulation(plan(i), at(i).seconds, at(i).rescored);
  return true;
}

std::vector<Id> Scorer::scored_in_order() {
  std::vector<Id> order;
  for (const Id i : dry_run_)
    if (is_scored(i)) order.push_back(i);
  std::sort(order.begin(), order.end(),
            [&](Id a, Id b) { return std::pair(at(a).seconds, a) < std::pair(at(b).seconds, b); });
  return order;
}

}  // namespace rehearse::planner
