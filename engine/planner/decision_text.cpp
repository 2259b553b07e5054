// Writes a Decision as text, and the error when no plan fits.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/refusal.h"
#include "engine/base/units.h"
#include "engine/planner/search/search.h"

namespace rehearse::planner {

std::string explain(const plan::Decision& d) {
  std::string out = fmt::format("plan          {}\n", summary_of(d.plan));
  out += fmt::format("predicted     {} a step ({})\n", to_text(Seconds(d.seconds)),
                     d.rescored ? to_text(Seconds(d.dry_run_seconds)) + " by the dry run"
                                : std::string("by the dry run alone: the best were not simulated"));
  if (!d.stragglers.empty()) out += fmt::format("stragglers    {}\n", d.stragglers);
  if (!d.placement.empty()) out += fmt::format("placement     {}\n", d.placement);
  int infeasible = 0;
  for (const plan::Infeasible& i : d.infeasible) infeasible += i.candidates;
  out += fmt::format(
      "candidates    {}: {} compiled and dry-run, {} slower by a bound{}{}\n", d.candidates,
      d.dry_run, d.pruned,
      d.simulations > 0 ? fmt::format(", {} simulated", d.simulations) : std::string(),
      d.beyond_budget > 0 ? fmt::format(", {} beyond the budget", d.beyond_budget) : std::string());
  for (const plan::Choice& choice : d.choices) {
    out +=
        fmt::format("\n{}: {} ({})\n", choice.name, choice.value, to_text(Seconds(choice.seconds)));
    for (const plan::Alternative& other : choice.runners_up)
      out += std::isinf(other.seconds) ? fmt::format("  {:<28} {}\n", other.value, other.why)
                                       : fmt::format("  {:<28} {:<10} {}\n", other.value,
                                                     to_text(Seconds(other.seconds)), other.why);
  }
  if (!d.runners_up.empty()) out += "\nrunners-up\n";
  for (const plan::RunnerUp& r : d.runners_up)
    out += fmt::format("  {:<10} {}; {}\n", to_text(Seconds(r.seconds)), r.value, r.why);
  if (!d.infeasible.empty()) out += fmt::format("\ninfeasible: {}\n", infeasible);
  for (const plan::Infeasible& i : d.infeasible)
    out += fmt::format("  {:>6}  {}; nearest: {}\n", i.candidates, i.constraint, i.nearest);
  if (!d.would_change.empty()) out += "\nwhat would change the decision\n";
  for (const std::string& line : d.would_change) out += "  " + line + "\n";
  for (const std::string& warning : d.warnings) out += "warning: " + warning + "\n";
  return out;
}

namespace {

struct Smallest {
  const plan::Plan* plan = nullptr;
  MemoryNeed need = {.share = std::numeric_limits<double>::infinity()};
};

/// The candidate with the smallest need of memory, linked; null: none is too large. Bounds of
/// candidates that were not dry-run may be far below their needs, so those with the smallest bounds
/// are dry-run here, until no bound is below the smallest need, or programs of so many ops have
/// been compiled.
Smallest smallest(const Search& search, Evaluator& evaluator) {
  constexpr std::size_t most_ops = 1'000'000;
  std::vector<Id> order;
  for (Id i = 0; i < search.scored.size(); ++i)
    if (search.scored[i].state == Scored::State::too_large) order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](Id i) { return search.scored[i].memory.share; });
  if (order.empty()) return {};
  Smallest out;
  std::size_t ops = 0;
  for (const Id i : order) {
    if (ops > most_ops || search.scored[i].memory.share >= out.need.share) break;
    const plan::Plan& plan = search.candidates.plans[i];
    const auto dry_run = unless_refused([&] { return evaluator.seconds(plan); });
    ops += evaluator.ops();
    const MemoryNeed need = evaluator.least_memory();
    if (dry_run && need.share < out.need.share) out = {&plan, need};
  }
  if (out.plan == nullptr) out.plan = &search.candidates.plans[order.front()];
  out.need = evaluator.memory(evaluator.link_fully(*out.plan), *out.plan);
  return out;
}

}  // namespace

InputError no_plan(const job::Job& job, const Search& search, Evaluator& evaluator,
                   const std::string& without_a_key) {
  const Scored *refused = nullptr, *on_host = nullptr;
  for (const Scored& s : search.scored) {
    if (s.state == Scored::State::refused && refused == nullptr) refused = &s;
    if (s.refusal.starts_with("memory of hosts: ") && on_host == nullptr) on_host = &s;
  }
  const auto stated = stated_choices(job);
  const std::string kept =
      stated.empty() ? std::string()
                     : fmt::format(" (with method.{} as stated)", fmt::join(stated, ", method."));
  const auto any = [&](Scored::State state) {
    return std::ranges::find(search.scored, state, &Scored::state) != search.scored.end();
  };
  if (any(Scored::State::too_large) && any(Scored::State::beyond_budget))
    return InputError(
        fmt::format("--budget {}: none of so many candidates of {} on {}{} fits into "
                    "memory; there are more to try: a larger budget, or 0 for all",
                    search.dry_run, job.model.name, job.cluster.name(), kept));
  const auto [nearest, need] = smallest(search, evaluator);
  if (nearest == nullptr) {
    std::string why = "no mesh of the world divides the model and the batch";
    if (!without_a_key.empty())
      why += "; nearest: " + without_a_key;
    else if (refused != nullptr)
      why = refused->refusal;
    else if (!search.candidates.refused.empty())
      why = fmt::format("{}; nearest: {}", search.candidates.refused.front().constraint,
                        search.candidates.refused.front().nearest);
    return InputError(fmt::format("no feasible plan of {} on {}{}: {}", job.model.name,
                                  job.cluster.name(), kept, why));
  }
  const auto bytes = [](double n) { return to_text(Bytes(n)); };
  const auto needed = static_cast<double>(need.bytes);
  return InputError(fmt::format(
      "no feasible plan of {} on {}{}: memory binds: the smallest of {} candidates needs {} of "
      "{}'s {}{}; nearest: {}",
      job.model.name, job.cluster.name(), kept, search.scored.size(), bytes(needed), need.kind,
      capacity_text(need.capacity, need.reserve),
      on_host == nullptr ? "" : ", or, with the optimizer on the host, " + on_host->refusal,
      without_a_key.empty() ? fmt::format("{} with {} of memory a device", summary_of(*nearest),
                                          bytes(needed + static_cast<double>(need.reserve)))
                            : without_a_key));
}

}  // namespace rehearse::planner
