// Turns a finished search into a Decision: the cost of each choice, which plans lost and why, and
// what would change the decision.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>

#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/units.h"
#include "engine/methods/strategy.h"
#include "engine/planner/search/search.h"
#include "engine/planner/search/sensitivity.h"

namespace rehearse::planner {
namespace {

constexpr std::size_t most_runners_up = 5;

using State = Scored::State;

std::string text(double seconds) { return to_text(Seconds(seconds)); }
std::string yes_no(bool b) { return b ? "yes" : "no"; }

/// "whole", "sparse in 12 of 26 segments, two-level in 8".
std::string gradients_text(const plan::Plan& p) {
  const auto count = [&](plan::Reduction reduction) {
    return std::count_if(p.exchange.sparse.layers.begin(), p.exchange.sparse.layers.end(),
                         [&](const plan::LayerExchange& x) { return x.reduction == reduction; });
  };
  const auto sparse = count(plan::Reduction::sparse), two_level = count(plan::Reduction::two_level);
  if (sparse + two_level == 0) return "whole";
  if (sparse == 0)
    return fmt::format("two-level in {} of {} segments", two_level,
                       p.exchange.sparse.layers.size());
  return fmt::format("sparse in {} of {} segments{}", sparse, p.exchange.sparse.layers.size(),
                     two_level > 0 ? fmt::format(", two-level in {}", two_level) : std::string());
}

/// "groups of 8", "weights kept in groups of 8".
std::string groups_text(const plan::Plan& p) {
  if (p.exchange.group() == 0) return "one";
  return fmt::format("{}groups of {}",
                     p.exchange.sharding.shard_group > 0 ? "" : "weights kept in ",
                     p.exchange.group());
}

std::string place(bool on_host) { return on_host ? "on the host" : "on the device"; }

/// The choices of a decision: name, and the value of a plan as text.
const std::vector<std::pair<const char*, std::function<std::string(const plan::Plan&)>>>&
dimensions() {
  static const std::vector<std::pair<const char*, std::function<std::string(const plan::Plan&)>>>
      all{{"mesh", mesh_text},
          {"order of axes", [](const plan::Plan& p) { return p.mesh.order; }},
          {"micro-batches",
           [](const plan::Plan& p) { return std::to_string(p.schedule.micro_batches); }},
          {"schedule",
           [](const plan::Plan& p) {
             if (p.mesh.pp == 1) return std::string("no pipeline");
             std::string out = schedule_text(p);
             if (p.schedule.virtual_stages > 1)
               out += fmt::format(", {} chunks a stage", p.schedule.virtual_stages);
             return out;
           }},
          {"ZeRO level",
           [](const plan::Plan& p) { return std::to_string(p.exchange.sharding.zero); }},
          {"weights kept gathered",
           [](const plan::Plan& p) { return yes_no(p.exchange.sharding.keep_gathered); }},
          {"ZeRO groups", groups_text},
          {"optimizer",
           [](const plan::Plan& p) { return place(p.exchange.offload != plan::Offload::none); }},
          {"activations", [](const plan::Plan& p) { return place(p.schedule.hosted.on); }},
          {"recomputation", [](const plan::Plan& p) { return yes_no(p.schedule.recompute); }},
          {"sequence parallelism",
           [](const plan::Plan& p) { return yes_no(p.mesh.sequence_parallel); }},
          {"bucket", [](const plan::Plan& p) { return to_text(Bytes(p.exchange.bucket_bytes())); }},
          {"samples a replica",
           [](const plan::Plan& p) {
             return std::string(p.schedule.shares.empty() ? "equal" : "by speed");
           }},
          {"gradients", gradients_text},
          {"devices", [](const plan::Plan& p) {
             return std::is_sorted(p.placement.rank_to_device.begin(),
                                   p.placement.rank_to_device.end())
                        ? std::string("in order")
                        : std::string("placed");
           }}};
  return all;
}

class Describer {
 public:
  Describer(const job::Job& job, const Search& search, Evaluator& evaluator)
      : job_(job), search_(search), evaluator_(evaluator), best_(search.finalists.front()) {}

  plan::Decision run() {
    plan::Decision d;
    d.plan = plan(best_);
    d.warm_up = plan(warm_up());
    d.seconds = of(best_).rescored;
    d.dry_run_seconds = of(best_).seconds;
    d.rescored = search_.rescored;
    if (const auto it = search_.placements.find(mesh_text(d.plan)); it != search_.placements.end())
      d.placement = it->second;
    count(d);
    d.simulations = search_.simulations;
    d.stragglers = stragglers_text();
    for (const auto& [name, value] : dimensions())
      if (auto choice = choice_of(name, value); !choice.runners_up.empty())
        d.choices.push_back(std::move(choice));
    for (const Id i : search_.finalists)
      if (i != best_ && d.runners_up.size() < most_runners_up)
        d.runners_up.push_back({plan(i), summary_of(plan(i)), of(i).rescored, why_lost(i)});
    d.would_change = what_would_change(job_, search_, evaluator_);
    d.warnings = plan_warnings(plan(best_), job_.cluster);
    warn_of_faults(d);
    return d;
  }

 private:
  const plan::Plan& plan(Id i) const { return search_.candidates.plans[i]; }
  const Scored& of(Id i) const { return search_.scored[i]; }

  /// The fastest finalist with dense gradients; if there is none, the fastest such candidate.
  Id warm_up() const {
    for (const Id i : search_.finalists)
      if (plan(i).exchange.sparse.layers.empty()) return i;
    Id best = best_;
    for (Id i = 0; i < search_.scored.size(); ++i)
      if (of(i).state == State::scored && plan(i).exchange.sparse.layers.empty() &&
          (!plan(best).exchange.sparse.layers.empty() || of(i).seconds < of(best).seconds))
        best = i;
    return best;
  }

  /// "rank 3 x 2, rank 17 x 1.5: counted on, as disturb.stragglers says so"; empty: no stragglers.
  std::string stragglers_text() const {
    std::vector<std::string> ranks;
    const auto pace = rank_slowdowns(job_.disturb, job_.plan.placement.rank_to_device.size());
    for (Id rank = 0; rank < pace.size(); ++rank)
      if (pace[rank] != 1) ranks.push_back(fmt::format("rank {} x {:g}", rank, pace[rank]));
    if (ranks.empty()) return "";
    constexpr std::size_t most_named = 8;
    const std::size_t more = ranks.size() - std::min(ranks.size(), most_named);
    ranks.resize(ranks.size() - more);
    return fmt::format("{}{}: counted on, as disturb.stragglers says so", fmt::join(ranks, ", "),
                       more > 0 ? fmt::format(" and {} more", more) : "");
  }

  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  /// The key that the refusal names, or that its program is wrong.
  static std::string refusal_of(const Scored& s) {
    return s.fault ? "compiles to a wrong program, a fault of rehearse"
                   : s.refusal.substr(0, s.refusal.find(": "));
  }

  /// Adds a warning when candidates compiled to wrong programs.
  void warn_of_faults(plan::Decision& d) const {
    int faults = 0;
    Id first = none;
    for (Id i = 0; i < search_.scored.size(); ++i)
      if (of(i).state == State::refused && of(i).fault && faults++ == 0) first = i;
    if (faults > 0)
      d.warnings.push_back(fmt::format(
          "{} candidate{} compiled to a wrong program and {} left out, which is a fault of "
          "rehearse; the first: {}: {}",
          faults, faults == 1 ? "" : "s", faults == 1 ? "was" : "were", summary_of(plan(first)),
          first_line(of(first).refusal)));
  }

  /// Fills the numbers of candidates, and the infeasible ones by constraint.
  void count(plan::Decision& d) const {
    std::map<std::string, plan::Infeasible> by_constraint;
    std::map<std::string, double> least;
    for (Id i = 0; i < search_.scored.size(); ++i) {
      const Scored& s = of(i);
      d.pruned += s.state == State::pruned;
      d.beyond_budget += s.state == State::beyond_budget;
      if (s.state == State::refused) {
        auto& entry = by_constraint[refusal_of(s)];
        if (entry.candidates++ == 0) entry.nearest = first_line(s.refusal);
      } else if (s.state == State::too_large) {
        auto& entry = by_constraint["memory of " + s.memory.kind];
        auto [it, first] = least.try_emplace(s.memory.kind, s.memory.share);
        if (entry.candidates++ == 0 || s.memory.share < it->second) {
          it->second = s.memory.share;
          entry.nearest = fmt::format("{}: at least {} of {}", summary_of(plan(i)),
                                      to_text(Bytes(static_cast<double>(s.memory.bytes))),
                                      capacity_text(s.memory.capacity, s.memory.reserve));
        }
      }
    }
    for (auto& [constraint, entry] : by_constraint) {
      entry.constraint = constraint;
      d.infeasible.push_back(std::move(entry));
    }
    for (const plan::Infeasible& refused : search_.candidates.refused)
      d.infeasible.push_back(refused);
    std::stable_sort(d.infeasible.begin(), d.infeasible.end(),
                     [](const plan::Infeasible& a, const plan::Infeasible& b) {
                       return a.candidates > b.candidates;
                     });
    d.candidates = static_cast<int>(search_.scored.size());
    d.dry_run = search_.dry_run;
  }

  /// One choice: for every other value the fastest plan with that value, and why it lost.
  plan::Choice choice_of(const char* name,
                         const std::function<std::string(const plan::Plan&)>& value) const {
    struct Best {
      Id candidate = none;
      double seconds = std::numeric_limits<double>::infinity();
      double bound = std::numeric_limits<double>::infinity();
      double memory = std::numeric_limits<double>::infinity();
    };
    std::map<std::string, Best> values;
    for (Id i = 0; i < search_.scored.size(); ++i) {
      if (!allows_sums(job_, plan(i))) continue;
      Best& best = values[value(plan(i))];
      const Scored& s = of(i);
      if (s.state == State::scored && s.seconds < best.seconds)
        best.seconds = s.seconds, best.candidate = i;
      if (s.state == State::pruned || s.state == State::beyond_budget)
        best.bound = std::min(best.bound, s.bound);
      if (s.state == State::too_large) best.memory = std::min(best.memory, s.memory.share);
    }
    plan::Choice choice{name, value(plan(best_)), of(best_).seconds};
    for (const auto& [value, best] : values) {
      if (value == choice.value) continue;
      plan::Alternative other{value, best.seconds};
      if (best.candidate != none)
        other.why = why_slower(best.candidate, simulated(best.candidate)) +
                    (best.bound < best.seconds
                         ? fmt::format("; others with it, not tried, at least {}", text(best.bound))
                         : "");
      else if (best.bound < std::numeric_limits<double>::infinity())
        other.why = fmt::format("at least {}: not tried", text(best.bound));
      else if (best.memory < std::numeric_limits<double>::infinity())
        other.why = fmt::format("does not fit: needs {} of what a device has to use",
                                percent(best.memory, 0));
      else
        other.why = "refused";
      choice.runners_up.push_back(std::move(other));
    }
    std::stable_sort(choice.runners_up.begin(), choice.runners_up.end(),
                     [](const plan::Alternative& a, const plan::Alternative& b) {
                       return a.seconds < b.seconds;
                     });
    if (choice.runners_up.size() > most_runners_up) choice.runners_up.resize(most_runners_up);
    return choice;
  }

  /// Of a finalist: "0.6% slower; 12.0% slower by the dry run: compute +3.1 ms, waiting -0.2 ms".
  std::string why_lost(Id i) const {
    if (!search_.rescored) return why_slower(i);
    const double ratio = of(i).rescored / of(best_).rescored - 1;
    return fmt::format(
        "{}; {}", std::abs(ratio) <= plainer_within ? "as fast" : percent(ratio, 1) + " slower",
        why_slower(i, " by the dry run"));
  }

  /// "12.0% slower: compute +3.1 ms, waiting -0.2 ms", by the dry run. `more` follows the
  /// percentage.
  std::string why_slower(Id i, const std::string& more = "") const {
    const auto mean = [&](Id candidate) {
      auto [it, fresh] = compute_.try_emplace(candidate, 0.0);
      if (fresh) {
        const auto stages = evaluator_.balance(plan(candidate));
        for (const StageBalance& s : stages)
          it->second += s.compute / static_cast<double>(stages.size());
      }
      return it->second;
    };
    const auto change = [&](double seconds) {  // sums in another order differ by less than 1e-9
      const double seen = std::abs(seconds) > 1e-9 * of(best_).seconds ? seconds : 0;
      return (seen < 0 ? "-" : "+") + text(std::abs(seen));
    };
    const double compute = mean(i) - mean(best_), all = of(i).seconds - of(best_).seconds;
    std::string out =
        fmt::format("{}{}: compute {}, waiting {}", slower_text(of(i).seconds, of(best_).seconds),
                    more, change(compute), change(all - compute));
    if (of(i).memory.share > 0.75)
      out += fmt::format(", {} of memory", percent(of(i).memory.share, 0));
    return out;
  }

  /// ", 24.0% slower with it", of a plan that is faster without contention and was simulated.
  std::string simulated(Id i) const {
    const bool slower = of(i).seconds < of(best_).seconds && of(i).rescored > of(best_).rescored;
    return search_.rescored && of(i).finalist && slower
               ? fmt::format(", {} with it", slower_text(of(i).rescored, of(best_).rescored))
               : "";
  }

  const job::Job& job_;
  const Search& search_;
  Evaluator& evaluator_;
  const Id best_;
  mutable std::map<Id, double> compute_ = {};  // compute seconds per step, mean over stages
};

}  // namespace

std::string mesh_text(const plan::Plan& plan) {
  return fmt::format("pp {} x dp {}{} x tp {}", plan.mesh.pp, plan.mesh.dp,
                     plan.mesh.cp == 1
                         ? ""
                         : fmt::format(" x cp {} ({})", plan.mesh.cp, name_of(plan.mesh.context)),
                     plan.mesh.tp);
}

std::string schedule_text(const plan::Plan& plan) {
  return methods::strategy_named(plan.method).proposed_to_itself
             ? plan.method
             : std::string(name_of(plan.schedule.pipeline));
}

std::string summary_of(const plan::Plan& plan) {
  std::vector<std::string> parts{mesh_text(plan)};
  parts.push_back(fmt::format("{} micro-batch{}", plan.schedule.micro_batches,
                              plan.schedule.micro_batches == 1 ? "" : "es"));
  if (plan.mesh.pp > 1)
    parts.push_back(plan.schedule.virtual_stages > 1
                        ? fmt::format("{} with {} chunks a stage", schedule_text(plan),
                                      plan.schedule.virtual_stages)
                        : schedule_text(plan));
  if (plan.exchange.sharding.zero > 0)
    parts.push_back(fmt::format("ZeRO-{}", plan.exchange.sharding.zero));
  if (plan.exchange.sharding.keep_gathered) parts.emplace_back("weights kept gathered");
  if (plan.exchange.sharding.reduce_once) parts.emplace_back("gradients reduced once");
  if (plan.exchange.sharding.prefetch != plan::Sharding{}.prefetch)
    parts.push_back(fmt::format("gathers {} segments ahead", plan.exchange.sharding.prefetch));
  if (plan.exchange.sharding.pending_buckets != plan::Sharding{}.pending_buckets)
    parts.push_back(fmt::format("{} pending bucket{}", plan.exchange.sharding.pending_buckets,
                                plan.exchange.sharding.pending_buckets == 1 ? "" : "s"));
  if (plan.exchange.group() > 0) parts.push_back(groups_text(plan));
  if (plan.exchange.offload != plan::Offload::none) parts.emplace_back("optimizer on the host");
  if (plan.schedule.hosted.on) parts.emplace_back("activations on the host");
  if (plan.fp8) parts.emplace_back("FP8 products");
  if (plan.exchange.fp32_gradients) parts.emplace_back("fp32 gradients");
  if (!plan.master_weights) parts.emplace_back("no fp32 weights");
  if (plan.bf16_moments) parts.emplace_back("bf16 moments");
  if (plan.schedule.recompute) parts.emplace_back("recomputation");
  if (plan.mesh.sequence_parallel) parts.emplace_back("sequence parallelism");
  if (const std::string gradients = gradients_text(plan); gradients != "whole")
    parts.push_back("gradients " + gradients);
  if (!plan.schedule.shares.empty()) parts.emplace_back("samples by speed");
  if (plan.mesh.order != (plan.mesh.cp > 1 ? "pp,dp,cp,tp" : "pp,dp,tp"))
    parts.push_back("order " + plan.mesh.order);
  if (plan.mesh.dp > 1 && plan.exchange.sharding.zero < 3)
    parts.push_back("buckets of " + to_text(Bytes(plan.exchange.bucket_bytes())));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string slower_text(double seconds, double chosen) {
  const double ratio = seconds / chosen - 1;
  if (std::abs(ratio) < 0.0005) return "as fast";
  return ratio > 0 ? percent(ratio, 1) + " slower"
                   : percent(-ratio, 1) + " faster without contention";
}

plan::Decision describe(const job::Job& job, const Search& search, Evaluator& evaluator) {
  return Describer(job, search, evaluator).run();
}

}  // namespace rehearse::planner
