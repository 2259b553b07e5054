// See fit.h.
#include "engine/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "engine/errors.h"
#include "engine/strategy.h"
#include "engine/units.h"
#include "engine/workspace.h"

namespace rehearse {
namespace {

std::string text(std::int64_t bytes) { return to_text(Bytes(static_cast<double>(bytes))); }

const DeviceNeed* fullest(const std::vector<DeviceNeed>& needs) {
  const DeviceNeed* worst = nullptr;
  auto share = [](const DeviceNeed& n) {
    return static_cast<double>(n.need) / static_cast<double>(n.capacity);
  };
  for (const DeviceNeed& n : needs)
    if (!n.fits() && (worst == nullptr || share(n) > share(*worst))) worst = &n;
  return worst;
}

/// A plan together with how it differs from the one that was asked for.
struct Trial {
  Plan plan = {};
  std::vector<std::string> changes = {};
};

Trial with_micro_batches(Trial trial, int micro_batches) {
  trial.plan.micro_batches = micro_batches;
  trial.changes.push_back(fmt::format("method.micro_batches={}", micro_batches));
  return trial;
}
Trial with_recompute(Trial trial) {
  trial.plan.recompute = true;
  trial.changes.emplace_back("method.recompute=true");
  return trial;
}

/// The same with more and more of the states sharded over dp.
std::vector<Trial> with_zero(const Trial& trial) {
  std::vector<Trial> out;
  const Strategy& strategy = strategy_named(trial.plan.method);
  for (int zero = trial.plan.zero + 1; zero <= 3; ++zero) {
    Trial next = trial;
    next.plan.zero = zero;
    if (zero <= strategy.combines.max_zero) {
      next.changes.push_back(fmt::format("method.zero={}", zero));
    } else {
      const std::string other = fmt::format("zero{}", zero);
      if (trial.plan.method != "ddp" && !trial.plan.method.starts_with("zero")) continue;
      if (!strategies().contains(other)) continue;
      next.plan.method = other;
      next.changes.push_back("method.name=" + other);
    }
    out.push_back(std::move(next));
  }
  return out;
}

std::vector<int> larger_divisors(int share, int than) {
  std::vector<int> out;
  for (int m = than + 1; m <= share; ++m)
    if (share % m == 0) out.push_back(m);
  return out;
}

std::vector<Trial> on_this_mesh(const Trial& start) {
  std::vector<Trial> out;
  const int share = start.plan.global_batch / start.plan.dp;
  const std::vector<int> more = larger_divisors(share, start.plan.micro_batches);
  for (int m : more) out.push_back(with_micro_batches(start, m));
  if (!start.plan.recompute) out.push_back(with_recompute(start));
  const std::vector<Trial> sharded = with_zero(start);
  out.insert(out.end(), sharded.begin(), sharded.end());
  if (!more.empty()) {
    if (!start.plan.recompute)
      out.push_back(with_recompute(with_micro_batches(start, more.back())));
    for (const Trial& s : sharded) out.push_back(with_micro_batches(s, more.back()));
  }
  for (const Trial& s : sharded) {
    Trial all = more.empty() ? s : with_micro_batches(s, more.back());
    out.push_back(all.plan.recompute ? all : with_recompute(all));
  }
  return out;
}

/// Data parallelism traded for tensor and pipeline parallelism.
std::vector<Trial> on_other_meshes(const Trial& start) {
  std::vector<Trial> out;
  const Plan& plan = start.plan;
  const int world = plan.pp * plan.dp * plan.tp;
  for (int ways = 2; ways <= world / (plan.pp * plan.tp); ways *= 2)
    for (int tp = ways; tp >= 1; tp /= 2) {
      Trial next = start;
      next.plan.tp = plan.tp * tp;
      next.plan.pp = plan.pp * (ways / tp);
      if (world % (next.plan.tp * next.plan.pp) != 0) continue;
      next.plan.dp = world / (next.plan.tp * next.plan.pp);
      next.plan.stages.clear();
      const Combines& can = strategy_named(plan.method).combines;
      if ((next.plan.pp > 1 && !can.pp) || (next.plan.tp > 1 && !can.tp)) {
        if (plan.method != "ddp" && !plan.method.starts_with("zero")) continue;
        next.plan.method = "megatron";
        next.plan.zero = 0;
        next.changes.emplace_back("method.name=megatron");
      }
      next.changes.push_back(fmt::format("method.pp={}", next.plan.pp));
      next.changes.push_back(fmt::format("method.dp={}", next.plan.dp));
      next.changes.push_back(fmt::format("method.tp={}", next.plan.tp));
      if (next.plan.global_batch % next.plan.dp != 0) continue;
      const int share = next.plan.global_batch / next.plan.dp;
      next = with_micro_batches(next, share);
      out.push_back(next);
      if (!next.plan.recompute) out.push_back(with_recompute(next));
    }
  return out;
}

std::optional<Remedy> try_out(const Trial& trial, const ModelSpec& model, const Cluster& cluster) {
  try {
    const LinkedProgram linked = link(compile(trial.plan, model), model);
    const auto needs = device_needs(linked, cluster, trial.plan.rank_to_device);
    Remedy remedy{trial.changes, 0};
    for (const DeviceNeed& n : needs) {
      if (!n.fits()) return std::nullopt;
      remedy.need = std::max(remedy.need, n.need);
    }
    return remedy;
  } catch (const InputError&) {
    return std::nullopt;  // not a combination that exists
  }
}

}  // namespace

std::vector<DeviceNeed> device_needs(const LinkedProgram& linked, const Cluster& cluster,
                                     std::span<const Id> rank_to_device) {
  std::map<Id, DeviceNeed> by_device;
  for (Id rank = 0; rank < linked.role_of.size(); ++rank) {
    const Id device = rank_to_device.empty() ? rank : rank_to_device[rank];
    DeviceNeed& n =
        by_device.try_emplace(device, DeviceNeed{.device = device, .rank = rank}).first->second;
    n.need += linked.memory[linked.role_of[rank]].total();
  }
  std::map<Id, DeviceNeed> by_kind;
  for (auto& [device, n] : by_device) {
    const Id kind = cluster.devices()[device].kind;
    n.kind = cluster.kinds()[kind].name;
    n.capacity = static_cast<std::int64_t>(cluster.kinds()[kind].memory.value);
    const auto [it, first] = by_kind.try_emplace(kind, n);
    if (!first && n.need > it->second.need) it->second = n;
  }
  std::vector<DeviceNeed> out;
  for (auto& [kind, n] : by_kind) out.push_back(std::move(n));
  return out;
}

std::optional<Remedy> find_remedy(const Plan& plan, const ModelSpec& model,
                                  const Cluster& cluster) {
  for (const auto& trials : {on_this_mesh({plan, {}}), on_other_meshes({plan, {}})})
    for (const Trial& trial : trials)
      if (auto remedy = try_out(trial, model, cluster)) return remedy;
  return std::nullopt;
}

void check_memory(const LinkedProgram& linked, const Plan& plan, const ModelSpec& model,
                  const Cluster& cluster) {
  const auto needs = device_needs(linked, cluster, plan.rank_to_device);
  const DeviceNeed* worst = fullest(needs);
  if (worst == nullptr) return;
  const Id role = linked.role_of[worst->rank];
  std::vector<std::string> largest;
  for (const StorageUse& use : linked.memory[role].largest) {
    if (largest.size() == 3) break;
    largest.push_back(fmt::format("{} {}", use.name, text(use.bytes)));
  }
  const auto remedy = find_remedy(plan, model, cluster);
  throw InputError(fmt::format(
      "memory: {} ({}, {}) needs {} for role {} of method \"{}\"; the largest: {}; {}",
      cluster.devices()[worst->device].name, worst->kind, text(worst->capacity), text(worst->need),
      linked.program.roles[role].name, plan.method, fmt::join(largest, ", "),
      remedy ? fmt::format("this would fit, with {}: --set {}", text(remedy->need),
                           fmt::join(remedy->changes, " --set "))
             : std::string("no number of micro-batches, recomputation, sharding of states or other "
                           "mesh of these devices makes it fit")));
}

}  // namespace rehearse
