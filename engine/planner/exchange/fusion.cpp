#include "engine/planner/exchange/fusion.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>

#include "engine/costs/costs.h"
#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "engine/planner/search/evaluator.h"

namespace rehearse::planner {

std::vector<double> ready_after(const plan::Plan& plan, const model::ModelSpec& model,
                                const cluster::Cluster& cluster, const costs::Profile* profile) {
  const link::OrderedProgram linked = link::order(methods::compile(plan, model));
  const costs::Costs costs(linked, model, cluster,
                           {.rank_to_device = plan.placement.rank_to_device,
                            .optimizer = plan.optimizer,
                            .profile = profile});
  std::vector<double> out(model.segments.size(), -1);
  for (Id r = 0; r < linked.program.roles.size(); ++r) {
    const program::Role& role = linked.program.roles[r];
    std::vector<double> now(role.ranks.size(), 0);
    for (Id o = 0; o < role.ops.size(); ++o) {
      const auto* pass = std::get_if<program::Compute>(&role.ops[o].work);
      if (pass == nullptr || pass->pass == program::Pass::forward ||
          pass->microbatch != plan.schedule.micro_batches - 1)
        continue;
      for (Id place = 0; place < now.size(); ++place) now[place] += costs.seconds(r, o, place);
      if (is_backward(pass->pass))
        out[pass->segment] = std::max(out[pass->segment], std::ranges::max(now));
    }
  }
  return out;
}

namespace {

std::vector<Id> ends_of(const std::vector<double>& ready, double cycle,
                        const model::ModelSpec& model) {
  std::vector<Id> out;
  Id previous = none;
  for (Id s = static_cast<Id>(model.segments.size()); s-- > 0;) {
    if (model.segments[s].groups.empty() || ready[s] < 0) continue;
    const bool later = previous != none && (cycle == 0 || std::floor(ready[s] / cycle) >
                                                              std::floor(ready[previous] / cycle));
    if (later) out.push_back(previous);
    previous = s;
  }
  return out;
}

}  // namespace

std::vector<Id> ends_of_cycles(const plan::Plan& plan, const model::ModelSpec& model,
                               const cluster::Cluster& cluster, const costs::Profile* profile) {
  return ends_of(ready_after(plan, model, cluster, profile), plan.exchange.fusion.cycle_time->value,
                 model);
}

job::Job with_cycles(job::Job job, const costs::Profile* profile) {
  if (!job.plan_file.empty() || job.plan.mesh.dp == 1 ||
      !methods::strategy_named(job.plan.method).combines.cycles)
    return job;
  plan::Exchange& x = job.plan.exchange;
  if (!job.autotune) {
    x.fusion.fused_after = ends_of_cycles(job.plan, job.model, job.cluster, profile);
    return job;
  }
  const std::vector<double> ready = ready_after(job.plan, job.model, job.cluster, profile);
  std::vector<double> buckets{1, 2, 4, 8, 16, 32, 64, 128}, cycles{1, 2.5, 5, 10, 25, 50, 100};
  for (double& bytes : buckets) bytes *= 1 << 20;
  for (double& seconds : cycles) seconds /= 1000;
  if (job.where.contains("method.bucket")) buckets = {x.bucket_bytes()};
  if (job.where.contains("method.cycle_time")) cycles = {x.fusion.cycle_time->value};
  Evaluator evaluator(job.model, job.cluster, profile);
  double best = std::numeric_limits<double>::infinity();
  plan::Plan chosen = job.plan, tried = job.plan;
  for (const double cycle : cycles)
    for (const double bucket : std::views::reverse(buckets)) {
      tried.exchange.bucket = Bytes(bucket), tried.exchange.fusion.cycle_time = Seconds(cycle);
      tried.exchange.fusion.fused_after = ends_of(ready, cycle, job.model);
      if (const double seconds = evaluator.seconds(tried); seconds < best)
        best = seconds, chosen = tried;
    }
  job.plan = chosen;
  return job;
}

}  // namespace rehearse::planner
