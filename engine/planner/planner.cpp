#include "engine/planner/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/methods/strategy.h"
#include "engine/planner/exchange/sparse_candidates.h"
#include "engine/planner/memory/needs.h"
#include "engine/planner/placement/placed_candidates.h"
#include "engine/planner/search/candidates.h"
#include "engine/planner/search/scorer.h"

namespace rehearse::planner {
namespace {

/// The largest number of finalists of one mesh. Finalists of several meshes are needed, because the
/// dry run ignores contention between channels, which differs most from mesh to mesh.
constexpr int most_of_a_mesh = 5;
/// Limits of `widen`: additional dry runs, simulations, and (rank, op) pairs of simulated plans.
constexpr int most_dry_runs_more = 1500, most_simulations_more = 32, most_kinds_more = 40;
constexpr std::size_t most_instances_more = 3'000'000;
/// Budget of each search for a plan that fits without one of the keys that the job states.
constexpr int most_tried_without_a_key = 64;

/// Number of mechanisms that a plan uses in addition to data parallelism on devices in order; ZeRO
/// level z counts as z, the optimizer or activations on the host as much as ZeRO 3.
int mechanisms(const plan::Plan& plan) {
  const bool sparse =
      std::any_of(plan.exchange.sparse.layers.begin(), plan.exchange.sparse.layers.end(),
                  [](const auto& layer) { return layer.reduction != plan::Reduction::dense; });
  return (plan.mesh.pp > 1) + (plan.mesh.tp > 1) + (plan.schedule.virtual_stages > 1) +
         plan.exchange.sharding.zero + 3 * (plan.exchange.offload != plan::Offload::none) +
         3 * plan.schedule.hosted.on + plan.schedule.recompute + plan.mesh.sequence_parallel +
         plan.exchange.sharding.keep_gathered + (plan.exchange.group() > 0) +
         !plan.schedule.shares.empty() + sparse + (plan.schedule.micro_batches > 1) +
         !std::is_sorted(plan.placement.rank_to_device.begin(),
                         plan.placement.rank_to_device.end());
}

class Planner {
 public:
  /// `wide`: with ZeRO 2 and 3 in pipelines and optimizers on the host, which multiply the plans.
  Planner(const job::Job& job, const costs::Profile* profile, const PlannerOptions& options,
          bool wide)
      : job_(job),
        profile_(profile),
        options_(options),
        scorer_(job, profile, options, wide),
        wide_(wide),
        enumerated_(static_cast<Id>(search_.scored.size())) {}

  /// False: no plan is feasible.
  bool search() {
    bound();
    score();
    if (job_.plan.placement.rank_to_device.size() <= most_placed && options_.budget == 0 &&
        job_.adaptive.placement)
      add_placed_candidates(job_, profile_, scorer_);
    if (methods::planned(job_.plan.method) &&
        job_.plan.exchange.sparse.reduction != plan::Reduction::dense)
      add_sparse_candidates(job_, profile_, options_, scorer_, enumerated_);
    choose_finalists();
    rescore();
    if (search_.rescored)
      for (const auto by : {ContentionGuess::By::its_class, ContentionGuess::By::its_kind})
        widen(by, by == ContentionGuess::By::its_class ? most_simulations_more : most_kinds_more);
    if (search_.finalists.empty()) return false;
    rank();
    prefer_plainer();
    return true;
  }
  const plan::Plan& best() const { return plan(search_.finalists.front()); }
  plan::Decision decision() { return describe(job_, search_, scorer_.evaluator); }
  InputError refusal(const std::string& without_a_key) {
    return no_plan(job_, search_, scorer_.evaluator, without_a_key);
  }

 private:
  Scored& at(Id i) { return scorer_.at(i); }
  const plan::Plan& plan(Id i) const { return scorer_.plan(i); }

  void bound() {
    for (Id i = 0; i < enumerated_; ++i) {
      enqueue(i);
      enqueue_offloaded(i);
    }
  }
  /// Returns how many candidates were added.
  int enqueue_offloaded(Id i) {
    int added = 0;
    for (const Id other : offloaded(i)) {
      enqueue(other);
      added += 1 + enqueue_offloaded(other);
    }
    return added;
  }
  void enqueue(Id i) {
    if (scorer_.bound_fast(i)) queue_.emplace(at(i).bound, i, false);
  }
  /// Adds candidate i with its optimizer or its activations on the host, if i turned out not to fit
  /// into memory.
  std::vector<Id> offloaded(Id i) {
    std::vector<Id> out;
    if (!wide_ || at(i).state != Scored::State::too_large) return out;
    for (plan::Plan& other : on_host(job_, plan(i)))
      out.push_back(scorer_.append(std::move(other)));
    return out;
  }

  /// Dry-runs candidates, smallest bound first. A candidate with only the fast bound gets the
  /// better bound and goes back into the queue. Prunes a candidate whose bound exceeds the times of
  /// the best `finalists` candidates.
  void score() {
    auto total = static_cast<int>(queue_.size());
    const auto kept = static_cast<std::size_t>(std::max(1, options_.finalists));
    std::vector<double> best;  // heap of the smallest times, as many as there are finalists
    for (int done = 0; !queue_.empty();) {
      const auto [bound, i, good] = queue_.top();
      queue_.pop();
      if (options_.prune && best.size() >= kept && bound > best.front()) {
        at(i).state = Scored::State::pruned;
        ++done;
        continue;
      }
      if (options_.budget > 0 && search_.dry_run >= options_.budget) {
        at(i).state = Scored::State::beyond_budget;
        ++done;
        continue;
      }
      if (!good) {
        done += !scorer_.bound_well(i);
        if (at(i).has_full_bound) queue_.emplace(at(i).bound, i, true);
        continue;
      }
      if (options_.progress) options_.progress(++done, total);
      scorer_.score(i);
      if (scorer_.is_scored(i)) {
        best.push_back(at(i).seconds);
        std::push_heap(best.begin(), best.end());
        if (best.size() > kept) std::pop_heap(best.begin(), best.end()), best.pop_back();
      } else {
        total += enqueue_offloaded(i);
      }
    }
    if (options_.progress && total > 0) options_.progress(total, total);
  }

  /// Links the fastest candidates in full until there are enough finalists.
  void choose_finalists() {
    std::vector<Id> order = scorer_.scored_in_order();
    std::erase_if(order, [&](Id i) { return !allows_sums(job_, plan(i)); });
    const auto wanted = static_cast<std::size_t>(std::max(1, options_.finalists));
    std::map<std::string, int> of_mesh;
    for (const bool any : {false, true})  // at most most_of_a_mesh of each mesh, then any
      for (std::size_t place = 0; place < order.size(); ++place) {
        const Id i = order[place];
        if (search_.finalists.size() == wanted) break;
        if (!scorer_.is_scored(i) || at(i).finalist) continue;
        if (!any && of_mesh[mesh_text(plan(i))] >= most_of_a_mesh) continue;
        if (!scorer_.links(i)) {
          for (const Id other : offloaded(i)) insert_scored(other, place, order);
          continue;
        }
        ++of_mesh[mesh_text(plan(i))];
        admit(i);
      }
    admit_plainest(order);
  }

  /// Dry-runs candidate i, and inserts it into `order` by its seconds, after `place`.
  void insert_scored(Id i, std::size_t place, std::vector<Id>& order) {
    scorer_.score(i);
    if (!scorer_.is_scored(i)) return;
    const auto later = std::next(order.begin(), static_cast<std::ptrdiff_t>(place) + 1);
    const auto faster = [&](Id a, Id b) { return at(a).seconds < at(b).seconds; };
    order.insert(std::upper_bound(later, order.end(), i, faster), i);
  }

  /// Of the candidates that are about as fast as the best, admits the one with the fewest
  /// mechanisms, which prefer_plainer prefers. `order`: fastest first.
  void admit_plainest(const std::vector<Id>& order) {
    if (search_.finalists.empty()) return;
    const double within = at(search_.finalists.front()).seconds * (1 + plainer_within);
    Id plainest = search_.finalists.front();
    for (const Id i : order) {
      if (at(i).seconds > within) break;
      if (scorer_.is_scored(i) && mechanisms(plan(i)) < mechanisms(plan(plainest))) plainest = i;
    }
    if (!at(plainest).finalist && scorer_.links(plainest)) admit(plainest);
  }

  void admit(Id i) {
    at(i).finalist = true;
    search_.finalists.push_back(i);
  }

  /// Rescores all finalists. If that fails for one of them, all keep the dry run's times.
  void rescore() {
    bool known = static_cast<bool>(options_.rescore);
    for (const Id i : search_.finalists)
      known = known && (scorer_.simulate(i) || at(i).state == Scored::State::refused);
    std::erase_if(search_.finalists, [&](Id i) { return at(i).state == Scored::State::refused; });
    search_.rescored = known;
    // Simulated and dry-run times cannot be compared.
    if (!known)
      for (const Id i : search_.finalists) at(i).rescored = at(i).seconds;
  }

  double least_rescored() const {
    double least = std::numeric_limits<double>::infinity();
    for (const Id i : search_.finalists) least = std::min(least, search_.scored[i].rescored);
    return least;
  }

  /// A candidate that was not simulated may be faster than the finalists if it suffers less from
  /// contention. Takes the one with the smallest guess (contention_guess.h): dry-runs it if only
  /// its bound is known, else simulates it. Ends when no guess is smaller than the best time.
  void widen(ContentionGuess::By by, int simulations) {
    using Promise = std::pair<double, Id>;
    std::priority_queue<Promise, std::vector<Promise>, std::greater<>> queue;
    const auto promise = [&](Id i) {
      return scorer_.is_scored(i) ? scorer_.guess.of_dry_run(plan(i), at(i).seconds, by)
                                  : scorer_.guess.of_bound(plan(i), at(i).bound, by);
    };
    const auto open = [&](Id i) {
      return !at(i).finalist && allows_sums(job_, plan(i)) &&
             (scorer_.is_scored(i) || at(i).state == Scored::State::pruned);
    };
    double best = least_rescored();
    for (Id i = 0; i < search_.scored.size(); ++i)
      if (open(i) && promise(i) < best) queue.emplace(promise(i), i);
    int dry_runs = most_dry_runs_more;
    while (!queue.empty() && simulations > 0) {
      const auto [promised, i] = queue.top();
      queue.pop();
      if (promised >= best) break;
      if (const double now = promise(i); now > promised) {
        if (now < best) queue.emplace(now, i);
      } else if (at(i).state == Scored::State::pruned) {
        if (!at(i).has_full_bound) {
          if (scorer_.bound_well(i)) queue.emplace(promise(i), i);
        } else if (dry_runs > 0 && (options_.budget == 0 || search_.dry_run < options_.budget)) {
          --dry_runs;
          scorer_.score(i);
          if (scorer_.is_scored(i)) queue.emplace(promise(i), i);
        }
      } else if (scorer_.links(i) && at(i).instances <= instances_left_) {
        instances_left_ -= at(i).instances;
        --simulations;
        if (!scorer_.simulate(i)) continue;
        admit(i);
        best = std::min(best, at(i).rescored);
      }
    }
  }

  void rank() {
    std::sort(search_.finalists.begin(), search_.finalists.end(), [&](Id a, Id b) {
      return std::pair(at(a).rescored, a) < std::pair(at(b).rescored, b);
    });
  }

  /// Among plans within plainer_within of the best, puts the one with the fewest mechanisms first.
  void prefer_plainer() {
    auto& order = search_.finalists;
    const double within = at(order.front()).rescored * (1 + plainer_within);
    const auto end =
        std::find_if(order.begin(), order.end(), [&](Id i) { return at(i).rescored > within; });
    const auto plainest = std::min_element(
        order.begin(), end, [&](Id a, Id b) { return mechanisms(plan(a)) < mechanisms(plan(b)); });
    std::rotate(order.begin(), plainest, plainest + 1);
  }

  const job::Job& job_;
  const costs::Profile* profile_;
  const PlannerOptions& options_;
  Scorer scorer_;
  Search& search_ = scorer_.search;
  bool wide_;
  std::size_t instances_left_ = most_instances_more;
  Id enumerated_;  // number of enumerated candidates; later ones were placed or made sparse
  using Waiting = std::tuple<double, Id, bool>;  // bound, candidate, whether it is the better bound
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> queue_ = {};
};

/// Searches without each stated key of [method] in turn. Returns "leave out method.KEY: PLAN" for
/// the first key without which a plan fits; empty: there is none.
std::string feasible_without_a_key(const job::Job& job, const costs::Profile* profile) {
  for (const std::string& key : stated_choices(job)) {
    job::Job freer = job;
    freer.where.erase("method." + key);
    const PlannerOptions one{.budget = most_tried_without_a_key, .finalists = 1};
    Planner planner(freer, profile, one, true);
    if (planner.search())
      return fmt::format("leave out method.{}: {}", key, summary_of(planner.best()));
  }
  return "";
}

}  // namespace

plan::Decision decide(const job::Job& job, const costs::Profile* profile,
                      const PlannerOptions& options) {
  // Checkpoints behind training are the same in all plans, and rare.
  job::Job without = job;
  without.plan.checkpoints = {};
  if (!methods::planned(job.plan.method)) methods::drop_own_fields(without.plan);
  const int zero = job.plan.exchange.sharding.zero,
            most_zero = methods::strategy_named(job.plan.method).combines.max_zero;
  if (must_be_sparse(job) && job.where.contains("method.zero") && zero > most_zero)
    throw located(job, InputError(fmt::format(
                           "method.zero: {}: ranks of ZeRO-3 exchange whole weights, which are not "
                           "sparse; at most {} with method.reduction as stated",
                           zero, most_zero)));
  const std::size_t ranks = job.plan.placement.rank_to_device.size();
  for (bool wide = ranks <= most_placed;; wide = true) {
    Planner planner(without, profile, options, wide);
    if (planner.search()) {
      plan::Decision decision = planner.decision();
      decision.plan.checkpoints = job.plan.checkpoints;
      return decision;
    }
    if (wide) throw planner.refusal(options.budget > 0 ? "" : feasible_without_a_key(job, profile));
  }
}

}  // namespace rehearse::planner
