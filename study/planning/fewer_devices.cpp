#include "study/planning/fewer_devices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/units.h"
#include "engine/cluster/price.h"
#include "engine/planner/exchange/sparsity.h"
#include "study/prediction/study.h"

namespace rehearse::study {
namespace {

/// Whether the job leaves open which devices it uses, and nothing in it names ranks.
bool devices_are_open(const job::Job& job) {
  return !job.where.contains("cluster.devices") && !job.where.contains("cluster.world_size") &&
         job.disturb.stragglers.empty() && job.cluster.shared_cores() == 0;
}

}  // namespace

std::string better_with_fewer(const job::Job& job, const plan::Decision& decision,
                              const costs::Profile* profile,
                              const planner::PlannerOptions& options) {
  if (!devices_are_open(job)) return "";
  const std::vector<Id>& all = job.plan.placement.rank_to_device;
  std::map<Id, std::vector<Id>> by_kind;
  for (const Id device : all) by_kind[job.cluster.devices()[device].kind].push_back(device);
  if (by_kind.size() < 2) return "";
  const cluster::Rent rent = cluster::rent_of(job.cluster, all);
  double fastest = decision.seconds * (1 - planner::plainer_within), cheapest = rent.per_hour;
  std::string faster, cheaper;
  for (const auto& [left_out, devices] : by_kind) {
    job::Job fewer = job;
    std::vector<Id>& of_ranks = fewer.plan.placement.rank_to_device;
    std::erase_if(of_ranks,
                  [&](Id device) { return job.cluster.devices()[device].kind == left_out; });
    fewer.plan.placement.node_of = planner::nodes_of(fewer.plan, job.cluster);
    double seconds = 0;
    try {
      const plan::Decision without = planner::decide(fewer, profile, options);
      if (without.rescored != decision.rescored) continue;
      seconds = without.seconds;
    } catch (const InputError&) {
      continue;  // no plan fits these devices
    }
    std::vector<std::string> kept;
    for (const auto& [kind, of_kind] : by_kind)
      if (kind != left_out) kept.push_back(fmt::format("\"{}\"", job.cluster.kinds()[kind].name));
    const std::string key = fmt::format("--set 'cluster.devices=[{}]'", fmt::join(kept, ", "));
    const std::string without =
        fmt::format("a plan without the {} {}", devices.size(), job.cluster.kinds()[left_out].name);
    const double per_hour = cluster::rent_of(job.cluster, of_ranks).per_hour;
    if (seconds < fastest) {
      fastest = seconds;
      faster = fmt::format("{} is {:.1f}% faster, {} a step: {}", without,
                           100 * (1 - seconds / decision.seconds), to_text(Seconds(seconds)), key);
    } else if (rent.known() && per_hour < cheapest &&
               seconds <= decision.seconds * (1 + planner::plainer_within)) {
      cheapest = per_hour;
      cheaper = fmt::format("{} is as fast, for {} in place of {} an hour: {}", without,
                            money_text(per_hour, rent.currency),
                            money_text(rent.per_hour, rent.currency), key);
    }
  }
  return faster.empty() ? cheaper : faster;
}

}  // namespace rehearse::study
