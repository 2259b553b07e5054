#include "engine/planner/exchange/sparse_candidates.h"

#include <algorithm>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/refusal.h"
#include "engine/methods/strategy.h"
#include "engine/planner/exchange/sparsity.h"
#include "engine/planner/placement/placed_candidates.h"
#include "engine/planner/search/candidates.h"

namespace rehearse::planner {
namespace {

/// Number of plans tried with sparse exchanges, with up to most_placed ranks and with more.
constexpr int most_sparse = 300, most_sparse_of_many = 8;

/// The fastest exchanges of plans; those of equal ranks and stages are priced once.
class Exchanges {
 public:
  Exchanges(const job::Job& job, const costs::Profile* profile) : job_(job), profile_(profile) {}

  const std::vector<ExchangeSeconds>& of(const plan::Plan& plan) {
    auto [it, fresh] =
        known_.try_emplace({plan.mesh.pp, plan.mesh.dp, plan.mesh.tp, plan.exchange.sharding.zero,
                            plan.mesh.order, plan.placement.stages, plan.placement.rank_to_device});
    if (fresh) it->second = fastest_exchanges(plan, job_.model, job_.cluster, profile_);
    return it->second;
  }

 private:
  using Key =
      std::tuple<int, int, int, int, std::string, std::vector<std::vector<Id>>, std::vector<Id>>;
  const job::Job& job_;
  const costs::Profile* profile_;
  std::map<Key, std::vector<ExchangeSeconds>> known_ = {};
};

bool all_dense(const std::vector<ExchangeSeconds>& exchanges) {
  return std::all_of(exchanges.begin(), exchanges.end(), [](const ExchangeSeconds& x) {
    return x.exchange.reduction == plan::Reduction::dense;
  });
}

/// What a step with these exchanges takes about at least: a stage exchanges nothing before its last
/// micro-batch, and then one layer after another. `compute`: seconds of the step without exchanges.
double with_exchanges(const plan::Plan& plan, double compute,
                      const std::vector<ExchangeSeconds>& exchanges) {
  double most = 0;
  for (int stage = 0; stage < plan.mesh.pp; ++stage) {
    double seconds = 0;
    for (auto chunk = static_cast<std::size_t>(stage); chunk < plan.placement.stages.size();
         chunk += static_cast<std::size_t>(plan.mesh.pp))
      for (const Id segment : plan.placement.stages[chunk]) seconds += exchanges[segment].transfer;
    most = std::max(most, seconds);
  }
  const double last = compute / plan.schedule.micro_batches;
  return compute - last + std::max(last, most);
}

}  // namespace

void add_sparse_candidates(const job::Job& job, const costs::Profile* profile,
                           const PlannerOptions& options, Scorer& scorer, Id enumerated) {
  const Search& search = scorer.search;
  using Waiting = std::tuple<double, Id, bool>;  // seconds, candidate, whether with its exchanges
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> queue;
  for (Id i = 0; i < search.scored.size(); ++i) {
    plan::Plan sparse = scorer.plan(i);
    // Sparse exchanges use each layer as a bucket: one bucket size is enough.
    const bool again = search.candidates.bucket_sizes > 1 && i < enumerated &&
                       sparse.exchange.bucket_bytes() != plan::default_bucket.value;
    // ZeRO-3 gathers whole weights, so it does not combine with sparse gradients.
    if (again || sparse.mesh.dp == 1 || sparse.exchange.sharding.zero > 2 ||
        scorer.at(i).state == Scored::State::too_large ||
        scorer.at(i).state == Scored::State::refused)
      continue;
    sparse.exchange.sparse.layers.resize(job.model.segments.size());  // excludes dense sums
    queue.emplace(scorer.bounds.seconds(sparse), i, false);
  }
  int left =
      job.plan.placement.rank_to_device.size() > most_placed ? most_sparse_of_many : most_sparse;
  if (options.budget > 0) left = std::min(left, options.budget - search.dry_run);
  std::vector<double> best;  // seconds of the candidates that may be chosen, sorted
  for (const Id i : scorer.scored_in_order())
    if (allows_sums(job, scorer.plan(i))) best.push_back(scorer.at(i).seconds);
  const auto kept = static_cast<std::size_t>(std::max(1, options.finalists));
  for (Exchanges exchanges(job, profile); left > 0 && !queue.empty();) {
    const auto [seconds, i, exchanged] = queue.top();
    queue.pop();
    if (best.size() >= kept && seconds > best[kept - 1]) break;
    const std::vector<ExchangeSeconds>& chosen = exchanges.of(scorer.plan(i));
    if (all_dense(chosen)) continue;
    if (!exchanged) {
      queue.emplace(with_exchanges(scorer.plan(i), seconds, chosen), i, true);
      continue;
    }
    --left;
    plan::Plan sparse = scorer.plan(i);
    sparse.method = job.plan.method;
    for (const ExchangeSeconds& x : chosen) sparse.exchange.sparse.layers.push_back(x.exchange);
    auto ready = unless_refused([&] { return methods::prepare(std::move(sparse), job.model); });
    if (!ready) continue;  // sparse gradients do not combine with this plan
    scorer.add(*std::move(ready));
    if (const Scored& s = search.scored.back(); s.state == Scored::State::scored)
      best.insert(std::upper_bound(best.begin(), best.end(), s.seconds), s.seconds);
  }
}

}  // namespace rehearse::planner
