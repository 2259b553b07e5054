#include "engine/planner/shares.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>
#include <variant>

#include "engine/costs/costs.h"
#include "engine/link/link.h"
#include "engine/methods/lowering/stage.h"
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

std::vector<int> shares_of(std::span<const double> seconds_per_sample, int total) {
  std::vector<int> shares(seconds_per_sample.size(), 1);
  using Next = std::pair<double, std::size_t>;  // seconds with one more sample, replica
  std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
  for (std::size_t i = 0; i < shares.size(); ++i) queue.emplace(2 * seconds_per_sample[i], i);
  for (int left = total - static_cast<int>(shares.size()); left > 0; --left) {
    const std::size_t i = queue.top().second;
    queue.pop();
    ++shares[i];
    queue.emplace((shares[i] + 1) * seconds_per_sample[i], i);
  }
  return shares;
}

namespace {

/// By replica: seconds that the passes of a step take on the rank that computes longest.
std::vector<double> busy_replicas(const job::Job& job, const costs::Profile* profile) {
  const plan::Plan& plan = job.plan;
  const link::OrderedProgram linked = link::order(methods::compile(plan, job.model));
  const std::vector<double> pace =
      rank_slowdowns(job.disturb, plan.placement.rank_to_device.size());
  const costs::Costs costs(linked, job.model, job.cluster, plan.placement.rank_to_device,
                           plan.optimizer, profile, {}, nullptr, pace);
  const program::Program mesh = methods::make_mesh(plan);
  std::vector<double> out(static_cast<std::size_t>(plan.mesh.dp), 0.0);
  for (Id r = 0; r < linked.program.roles.size(); ++r) {
    const program::Role& role = linked.program.roles[r];
    std::vector<double> busy(role.ranks.size(), 0.0);
    for (Id o = 0; o < role.ops.size(); ++o)
      if (std::holds_alternative<program::Compute>(role.ops[o].work))
        for (Id place = 0; place < busy.size(); ++place) busy[place] += costs.seconds(r, o, place);
    for (Id place = 0; place < busy.size(); ++place)
      if (busy[place] > 0) {  // no server
        const int replica = tensors::place_of(mesh, data_axes(mesh), role.ranks[place]).index;
        double& longest = out[static_cast<std::size_t>(replica)];
        longest = std::max(longest, busy[place]);
      }
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
    std::vector<double> seconds = busy_replicas(job, profile);
    const double longest = std::ranges::max(seconds);
    if (longest >= shortest) break;
    shortest = longest, best = shares;
    for (std::size_t i = 0; i < seconds.size(); ++i) seconds[i] /= shares[i];
    shares = shares_of(seconds, std::accumulate(shares.begin(), shares.end(), 0));
  }
  shares = std::ranges::count(best, best.front()) == std::ssize(best) ? std::vector<int>{} : best;
  return job;
}

}  // namespace rehearse::planner
