#include "engine/planner/placement/shares.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <utility>
#include <variant>

#include "engine/costs/costs.h"
#include "engine/link/link.h"
#include "engine/methods/lowering/stage/stage.h"
#include "engine/methods/strategy.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::planner {

std::vector<int> apportion(std::span<const double> weights, int total) {
  const std::size_t n = weights.size();
  assert(n > 0 && total >= static_cast<int>(n));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> quota(n);
  std::vector<int> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    quota[i] = weights[i] / sum * total;
    // The tolerance keeps integers from being rounded down.
    out[i] = std::max(1, static_cast<int>(std::floor(quota[i] + 1e-9)));
  }
  const auto owed = [&](std::size_t i) { return quota[i] - out[i]; };
  int given = std::accumulate(out.begin(), out.end(), 0);
  for (; given < total; ++given) {
    std::size_t most = 0;
    for (std::size_t i = 1; i < n; ++i)
      if (owed(i) > owed(most) + 1e-9) most = i;
    ++out[most];
  }
  for (; given > total; --given) {  // the minimum of one sample raised some shares
    std::size_t least = n;
    for (std::size_t i = 0; i < n; ++i)
      if (out[i] > 1 && (least == n || owed(i) < owed(least) - 1e-9)) least = i;
    --out[least];
  }
  return out;
}

namespace {

/// Adds samples to shares until they sum to `total`, each to the replica that would then finish
/// first.
std::vector<int> filled(std::vector<int> shares, int total, const auto& seconds) {
  using Next = std::pair<double, std::size_t>;  // seconds with one more sample, replica
  std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
  for (std::size_t i = 0; i < shares.size(); ++i) queue.emplace(seconds(i, shares[i] + 1), i);
  for (int left = total - std::accumulate(shares.begin(), shares.end(), 0); left > 0; --left) {
    const std::size_t i = queue.top().second;
    queue.pop();
    ++shares[i];
    queue.emplace(seconds(i, shares[i] + 1), i);
  }
  return shares;
}

}  // namespace

std::vector<int> shares_of(std::span<const double> seconds_per_sample, int total) {
  return filled(std::vector<int>(seconds_per_sample.size(), 1), total,
                [&](std::size_t i, int samples) { return samples * seconds_per_sample[i]; });
}

std::vector<int> refined(std::span<const int> shares,
                         const std::function<double(std::size_t, int)>& seconds) {
  constexpr int fewer = 4;
  std::vector<int> least;
  for (const int share : shares) least.push_back(std::max(1, share - fewer));
  std::vector<int> out =
      filled(std::move(least), std::accumulate(shares.begin(), shares.end(), 0), seconds);
  const auto end = [&](std::span<const int> of) {
    double last = 0;
    for (std::size_t i = 0; i < of.size(); ++i) last = std::max(last, seconds(i, of[i]));
    return last;
  };
  if (end(out) >= end(shares)) out.assign(shares.begin(), shares.end());
  return out;
}

std::vector<double> by_replica(const plan::Plan& plan, std::span<const double> seconds) {
  const program::Program mesh = methods::make_mesh(plan);
  std::vector<double> out(static_cast<std::size_t>(plan.mesh.dp));
  for (Id rank = 0; rank < seconds.size(); ++rank) {
    if (seconds[rank] == 0) continue;
    const int replica = tensors::place_of(mesh, data_axes(mesh), rank).index;
    double& slowest = out[static_cast<std::size_t>(replica)];
    slowest = std::max(slowest, seconds[rank]);
  }
  return out;
}

std::vector<int> unless_equal(std::vector<int> shares) {
  if (std::ranges::count(shares, shares.front()) == std::ssize(shares)) shares.clear();
  return shares;
}

Balance balance(const plan::Plan& plan, std::span<const double> busy) {
  std::vector<double> seconds = by_replica(plan, busy);
  Balance out{.slowest_now_s = std::ranges::max(seconds)};
  for (int i = 0; i < plan.mesh.dp; ++i) seconds[static_cast<std::size_t>(i)] /= plan.samples(i);
  out.shares = shares_of(seconds, plan.schedule.global_batch / plan.schedule.micro_batches);
  for (std::size_t i = 0; i < seconds.size(); ++i)
    out.slowest_balanced_s = std::max(out.slowest_balanced_s, seconds[i] * out.shares[i]);
  return out;
}

namespace {

/// By rank: seconds that its passes of a step take, by the prices of the dry run.
std::vector<double> busy_ranks(const job::Job& job, const costs::Profile* profile) {
  const plan::Plan& plan = job.plan;
  const link::OrderedProgram linked = link::order(methods::compile(plan, job.model));
  const std::size_t ranks = plan.placement.rank_to_device.size();
  const std::vector<double> pace = rank_slowdowns(job.disturb, ranks);
  const costs::Costs costs(linked, job.model, job.cluster,
                           {.rank_to_device = plan.placement.rank_to_device,
                            .optimizer = plan.optimizer,
                            .profile = profile,
                            .pace = pace});
  std::vector<double> out(ranks);
  for (Id r = 0; r < linked.program.roles.size(); ++r) {
    const program::Role& role = linked.program.roles[r];
    for (Id o = 0; o < role.ops.size(); ++o)
      if (std::holds_alternative<program::Compute>(role.ops[o].work))
        for (Id place = 0; place < role.ranks.size(); ++place)
          out[role.ranks[place]] += costs.seconds(r, o, place);
  }
  return out;
}

}  // namespace

job::Job with_shares(job::Job job, const costs::Profile* profile) {
  if (job.shares != job::Shares::speed || !job.plan_file.empty() || job.plan.mesh.dp == 1)
    return job;
  constexpr int rounds = 4;  // a sample takes longer in a small batch than in a large one
  std::vector<int>& shares = job.plan.schedule.shares;
  std::vector<int> best;
  double shortest = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    Balance found = balance(job.plan, busy_ranks(job, profile));
    if (found.slowest_now_s >= shortest) break;
    shortest = found.slowest_now_s;
    best = std::exchange(shares, std::move(found.shares));
  }
  // Products take whole tiles, so times of neighbouring shares are not in proportion.
  job::Job uniform = job;
  uniform.plan.schedule.shares.clear();
  if (best.empty())  // equal ones were the best
    best.assign(static_cast<std::size_t>(job.plan.mesh.dp), uniform.plan.samples());
  std::map<int, std::vector<double>> seconds;  // by samples, then by replica
  best = refined(best, [&](std::size_t replica, int samples) {
    const auto [at, fresh] = seconds.try_emplace(samples);
    if (fresh) {
      uniform.plan.schedule.global_batch =
          samples * job.plan.mesh.dp * job.plan.schedule.micro_batches;
      at->second = by_replica(uniform.plan, busy_ranks(uniform, profile));
    }
    return at->second[replica];
  });
  shares = unless_equal(std::move(best));
  return job;
}

}  // namespace rehearse::planner
