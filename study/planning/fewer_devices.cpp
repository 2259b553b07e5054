#include "study/planning/fewer_devices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/units.h"
#include "engine/planner/exchange/sparsity.h"

namespace rehearse::study {
namespace {

/// Whether the job leaves open which devices it uses, and nothing in it names ranks.
bool devices_are_open(const job::Job& job) {
  return !job.where.contains("cluster.devices") && !job.where.contains("cluster.world_size") &&
         job.disturb.stragglers.empty() && job.cluster.shared_cores() == 0;
}

}  // namespace

std::string faster_with_fewer(const job::Job& job, const plan::Decision& decision,
                              const costs::Profile* profile,
                              const planner::PlannerOptions& options) {
  if (!devices_are_open(job)) return "";
  const std::vector<Id>& all = job.plan.placement.rank_to_device;
  std::map<Id, std::vector<Id>> by_kind;
  for (const Id device : all) by_kind[job.cluster.devices()[device].kind].push_back(device);
  if (by_kind.size() < 2) return "";
  double best = decision.seconds * (1 - planner::plainer_within);
  std::string advice;
  for (const auto& [left_out, devices] : by_kind) {
    job::Job fewer = job;
    std::erase_if(fewer.plan.placement.rank_to_device,
                  [&](Id device) { return job.cluster.devices()[device].kind == left_out; });
    fewer.plan.placement.node_of = planner::nodes_of(fewer.plan, job.cluster);
    try {
      const plan::Decision without = planner::decide(fewer, profile, options);
      if (without.rescored != decision.rescored || without.seconds >= best) continue;
      best = without.seconds;
    } catch (const InputError&) {
      continue;  // no plan fits these devices
    }
    std::vector<std::string> kept;
    for (const auto& [kind, of_kind] : by_kind)
      if (kind != left_out) kept.push_back(fmt::format("\"{}\"", job.cluster.kinds()[kind].name));
    advice = fmt::format(
        "a plan without the {} {} is {:.1f}% faster, {} a step: --set 'cluster.devices=[{}]'",
        devices.size(), job.cluster.kinds()[left_out].name, 100 * (1 - best / decision.seconds),
        to_text(Seconds(best)), fmt::join(kept, ", "));
  }
  return advice;
}

}  // namespace rehearse::study
