#include "engine/planner/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "engine/base/divisors.h"
#include "engine/base/errors.h"
#include "engine/base/units.h"
#include "engine/link/workspace.h"
#include "engine/methods/strategy.h"
#include "engine/planner/bounds.h"

namespace rehearse::planner {
namespace {

std::string text(std::int64_t bytes) { return to_text(Bytes(static_cast<double>(bytes))); }

/// The device that exceeds its memory by the largest factor; null: all fit.
const DeviceNeed* fullest(const std::vector<DeviceNeed>& needs) {
  const DeviceNeed* worst = nullptr;
  auto share = [](const DeviceNeed& n) {
    return static_cast<double>(n.need) / std::max(1.0, static_cast<double>(n.usable()));
  };
  for (const DeviceNeed& n : needs)
    if (!n.fits() && (worst == nullptr || share(n) > share(*worst))) worst = &n;
  return worst;
}

/// How many times a rank's snapshot is in a host's memory: itself, and the last two checkpoints if
/// nodes keep them there, with the parts of the other nodes of a group.
int copies_in_memory(const plan::Checkpoints& how) {
  const bool keeps = how.to == program::Medium::memory || how.to == program::Medium::peers;
  return 1 + (keeps ? 2 * how.group : 0);
}

/// Throws InputError when what a node's ranks keep on its host does not fit into its memory.
void check_host_memory(const link::LinkedProgram& linked, const cluster::Cluster& cluster,
                       const plan::Plan& plan) {
  const std::vector<Id>& rank_to_device = plan.placement.rank_to_device;
  std::map<Id, std::int64_t> need;  // by node
  for (Id r = 0; r < linked.program.roles.size(); ++r)
    for (const Id rank : linked.program.roles[r].ranks)
      if (linked.memory[r].host > 0) {
        const Id device = rank_to_device.empty() ? rank : rank_to_device[rank];
        const link::RoleMemory& memory = linked.memory[r];
        need[cluster.devices()[device].node] +=
            memory.host + memory.snapshots * (copies_in_memory(plan.checkpoints) - 1);
      }
  for (const auto& [node, bytes] : need)
    if (const Bytes memory = cluster.host_of(node).memory;
        memory.value > 0 && static_cast<double>(bytes) > memory.value)
      throw InputError(
          fmt::format("memory: the host of node {} has {}, its ranks need {} for {}", node,
                      to_text(memory), text(bytes),
                      plan.exchange.offload == plan::Offload::none
                          ? "checkpoints: use checkpoint.kind = \"sharded\", which needs none"
                      : plan.checkpoints.every == 0
                          ? "the optimizer: use method.offload = \"none\" or more nodes"
                          : "the optimizer and checkpoints: use checkpoint.kind = \"sharded\", "
                            "which needs none for checkpoints"));
}

/// A changed plan, and its changes in the form of --set.
struct Trial {
  plan::Plan plan = {};
  std::vector<std::string> changes = {};
};

Trial with_micro_batches(Trial trial, int micro_batches) {
  trial.plan.schedule.micro_batches = micro_batches;
  trial.changes.push_back(fmt::format("method.micro_batches={}", micro_batches));
  return trial;
}
Trial with_recompute(Trial trial) {
  trial.plan.schedule.recompute = true;
  trial.changes.emplace_back("method.recompute=true");
  return trial;
}

/// The same plan at each higher ZeRO level that the method supports.
std::vector<Trial> with_zero(const Trial& trial) {
  std::vector<Trial> out;
  const methods::Strategy& strategy = methods::strategy_named(trial.plan.method);
  for (int zero = trial.plan.exchange.zero + 1; zero <= strategy.combines.max_zero; ++zero) {
    Trial next = trial;
    next.plan.exchange.zero = zero;
    if (strategy.at_zero != nullptr) {
      next.plan.method = strategy.at_zero(zero);
      next.changes.push_back("method.name=" + next.plan.method);
    } else {
      next.changes.push_back(fmt::format("method.zero={}", zero));
    }
    out.push_back(std::move(next));
  }
  return out;
}

/// Whether the plan has few enough passes to be compiled in a search.
bool small_enough(const plan::Plan& plan, const plan::Plan& start, const model::ModelSpec& model) {
  return passes_of(plan, model) <= std::max(most_tried_passes, passes_of(start, model));
}

/// The larger numbers of micro-batches that divide a replica's samples.
std::vector<int> more_micro_batches(const plan::Plan& plan, const plan::Plan& start,
                                    const model::ModelSpec& model) {
  std::vector<int> out;
  for (const int m : divisors(plan.schedule.global_batch / plan.mesh.dp)) {
    plan::Plan next = plan;
    next.schedule.micro_batches = m;
    if (m > plan.schedule.micro_batches && small_enough(next, start, model)) out.push_back(m);
  }
  return out;
}

/// More micro-batches, recomputation, higher ZeRO levels, then their combinations.
std::vector<Trial> on_this_mesh(const Trial& start, const model::ModelSpec& model) {
  std::vector<Trial> out;
  const std::vector<int> more = more_micro_batches(start.plan, start.plan, model);
  for (int m : more) out.push_back(with_micro_batches(start, m));
  if (!start.plan.schedule.recompute) out.push_back(with_recompute(start));
  const std::vector<Trial> sharded = with_zero(start);
  out.insert(out.end(), sharded.begin(), sharded.end());
  if (!more.empty()) {
    if (!start.plan.schedule.recompute)
      out.push_back(with_recompute(with_micro_batches(start, more.back())));
    for (const Trial& s : sharded) out.push_back(with_micro_batches(s, more.back()));
  }
  for (const Trial& s : sharded) {
    Trial all = more.empty() ? s : with_micro_batches(s, more.back());
    out.push_back(all.plan.schedule.recompute ? all : with_recompute(all));
  }
  return out;
}

/// The optimizer on the host: alone, at the highest ZeRO level, and there with recomputation. None
/// if the platform does not say how fast its hosts are.
std::vector<Trial> on_the_host(const Trial& start, const cluster::Cluster& cluster) {
  std::vector<Trial> out;
  const methods::Combines& can = methods::strategy_named(start.plan.method).combines;
  const cluster::Host& host = cluster.host_of(0);
  if (start.plan.exchange.offload != plan::Offload::none || !can.offload || host.link.value <= 0 ||
      (host.bandwidth.value <= 0 && cluster.shared_cores() == 0))
    return out;
  const auto offloaded = [&](Trial trial) {
    trial.plan.exchange.offload = plan::Offload::optimizer;
    trial.changes.emplace_back("method.offload=optimizer");
    return trial;
  };
  out.push_back(offloaded(start));
  const std::vector<Trial> sharded = with_zero(start);
  if (!sharded.empty()) out.push_back(offloaded(sharded.back()));
  if (can.recompute && !start.plan.schedule.recompute) {
    const Trial last = out.back();
    out.push_back(with_recompute(last));
  }
  return out;
}

/// Meshes with less data parallelism and more tensor and pipeline parallelism.
std::vector<Trial> on_other_meshes(const Trial& start, const model::ModelSpec& model) {
  std::vector<Trial> out;
  const plan::Plan& plan = start.plan;
  const int world = plan.mesh.pp * plan.mesh.dp * plan.mesh.tp;
  for (int ways = 2; ways <= world / (plan.mesh.pp * plan.mesh.tp); ways *= 2)
    for (int tp = ways; tp >= 1; tp /= 2) {
      Trial next = start;
      next.plan.mesh.tp = plan.mesh.tp * tp;
      next.plan.mesh.pp = plan.mesh.pp * (ways / tp);
      if (world % (next.plan.mesh.tp * next.plan.mesh.pp) != 0) continue;
      next.plan.mesh.dp = world / (next.plan.mesh.tp * next.plan.mesh.pp);
      next.plan.placement.stages.clear();
      const methods::Strategy& strategy = methods::strategy_named(plan.method);
      if ((next.plan.mesh.pp > 1 && !strategy.combines.pp) ||
          (next.plan.mesh.tp > 1 && !strategy.combines.tp)) {
        if (strategy.with_model_parallelism == nullptr) continue;
        next.plan.method = strategy.with_model_parallelism;
        next.plan.exchange.zero = 0;
        next.changes.push_back("method.name=" + next.plan.method);
      }
      next.changes.push_back(fmt::format("method.pp={}", next.plan.mesh.pp));
      next.changes.push_back(fmt::format("method.dp={}", next.plan.mesh.dp));
      next.changes.push_back(fmt::format("method.tp={}", next.plan.mesh.tp));
      if (next.plan.schedule.global_batch % next.plan.mesh.dp != 0) continue;
      next.plan.schedule.micro_batches = 0;  // so that more_micro_batches lists all numbers
      const std::vector<int> numbers = more_micro_batches(next.plan, start.plan, model);
      if (numbers.empty()) continue;
      next = with_micro_batches(next, numbers.back());
      out.push_back(next);
      if (!next.plan.schedule.recompute) out.push_back(with_recompute(next));
    }
  return out;
}

class RemedySearch {
 public:
  RemedySearch(const plan::Plan& plan, const model::ModelSpec& model,
               const cluster::Cluster& cluster, bool keep_method)
      : plan_(plan),
        model_(model),
        cluster_(cluster),
        keep_method_(keep_method),
        bounds_(model, cluster, nullptr) {}

  std::optional<Remedy> run() {
    left_ = most_remedies - 2 * for_smaller_batches - for_other_meshes - for_the_host;
    for (const Trial& trial : on_this_mesh({plan_, {}}, model_))
      if (auto remedy = try_out(trial)) return remedy;
    left_ += for_the_host;
    for (const Trial& trial : on_the_host({plan_, {}}, cluster_))
      if (auto remedy = try_out(trial)) return remedy;
    left_ += for_other_meshes;
    for (const Trial& trial : on_other_meshes({plan_, {}}, model_))
      if (auto remedy = try_out(trial)) return remedy;
    return smaller_batch();
  }

 private:
  static constexpr int for_smaller_batches = 3, for_other_meshes = 2, for_the_host = 2;

  /// Whether the plan is valid and its lower bound of memory fits.
  bool open(const plan::Plan& plan) {
    const auto ready = unless_refused([&] { return methods::prepare(plan, model_); });
    // The bound does not include the memory of parameter servers.
    return ready && small_enough(*ready, plan_, model_) &&
           (ready->mesh.servers > 0 || bounds_.memory(*ready).share <= 1);
  }

  /// Compiles and links the trial; none: it does not fit.
  std::optional<Remedy> try_out(const Trial& trial) {
    if (keep_method_ && trial.plan.method != plan_.method) return std::nullopt;
    if (left_ == 0 || !open(trial.plan)) return std::nullopt;
    --left_;
    const auto program = unless_refused([&] { return methods::compile(trial.plan, model_); });
    if (!program) return std::nullopt;
    Remedy remedy{trial.changes, 0};
    for (const DeviceNeed& n : device_needs(link::link(*program, model_), cluster_,
                                            trial.plan.placement.rank_to_device)) {
      if (!n.fits()) return std::nullopt;
      remedy.need = std::max(remedy.need, n.need);
    }
    return remedy;
  }

  /// A smaller batch, first with as many micro-batches as a search can compile, then with the
  /// plan's number.
  std::optional<Remedy> smaller_batch() {
    if (!plan_.schedule.shares.empty()) return std::nullopt;
    plan::Plan one = plan_;
    one.schedule.micro_batches = 1;
    const auto most = std::min<std::int64_t>(plan_.schedule.global_batch / plan_.mesh.dp,
                                             most_tried_passes / passes_of(one, model_));
    if (most > plan_.schedule.micro_batches)
      if (auto remedy = smaller_batch(static_cast<int>(most))) return remedy;
    return smaller_batch(plan_.schedule.micro_batches);
  }

  /// Fewer samples per micro-batch. Starts with the most samples that the memory bound allows,
  /// found by bisection; each further trial has a quarter fewer.
  std::optional<Remedy> smaller_batch(int micro_batches) {
    left_ = for_smaller_batches;
    const int at_once = plan_.mesh.dp * micro_batches;
    const auto with = [&](int samples) {
      Trial trial{plan_, {}};
      if (micro_batches != plan_.schedule.micro_batches)
        trial = with_micro_batches(std::move(trial), micro_batches);
      trial.plan.schedule.global_batch = at_once * samples;
      trial.changes.push_back(
          fmt::format("train.global_batch={}", trial.plan.schedule.global_batch));
      return trial;
    };
    int fits = 0,
        beyond = plan_.schedule.global_batch / at_once + 1;  // memory grows with the samples
    while (beyond - fits > 1) {
      const int middle = fits + (beyond - fits) / 2;
      (open(with(middle).plan) ? fits : beyond) = middle;
    }
    if (at_once * fits == plan_.schedule.global_batch) --fits;
    for (; fits > 0; fits -= (fits + 3) / 4)
      if (auto remedy = try_out(with(fits))) return remedy;
    return std::nullopt;
  }

  const plan::Plan& plan_;
  const model::ModelSpec& model_;
  const cluster::Cluster& cluster_;
  bool keep_method_;
  Bounds bounds_;
  int left_ = 0;  // number of programs that may still be compiled
};

}  // namespace

std::vector<DeviceNeed> device_needs(const link::LinkedProgram& linked,
                                     const cluster::Cluster& cluster,
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
    n.reserve = static_cast<std::int64_t>(cluster.kinds()[kind].reserve.value);
    const auto [it, first] = by_kind.try_emplace(kind, n);
    if (!first && n.need > it->second.need) it->second = n;
  }
  std::vector<DeviceNeed> out;
  for (auto& [kind, n] : by_kind) out.push_back(std::move(n));
  return out;
}

std::optional<Remedy> find_remedy(const plan::Plan& plan, const model::ModelSpec& model,
                                  const cluster::Cluster& cluster, bool keep_method) {
  return RemedySearch(plan, model, cluster, keep_method).run();
}

std::string capacity_text(std::int64_t capacity, std::int64_t reserve) {
  return reserve == 0 ? text(capacity)
                      : fmt::format("{} less {} reserve", text(capacity), text(reserve));
}

void check_memory(const link::LinkedProgram& linked, const plan::Plan& plan,
                  const model::ModelSpec& model, const cluster::Cluster& cluster) {
  check_host_memory(linked, cluster, plan);
  const auto needs = device_needs(linked, cluster, plan.placement.rank_to_device);
  const DeviceNeed* worst = fullest(needs);
  if (worst == nullptr) return;
  const Id role = linked.role_of[worst->rank];
  std::vector<std::string> largest;
  for (const link::StorageUse& use : linked.memory[role].largest) {
    if (largest.size() == 3) break;
    largest.push_back(fmt::format("{} {}", use.name, text(use.bytes)));
  }
  const auto remedy = find_remedy(plan, model, cluster);
  throw InputError(fmt::format(
      "memory: {} ({}, {}) needs {} for role {} of method \"{}\"; the largest: {}; {}",
      cluster.devices()[worst->device].name, worst->kind,
      capacity_text(worst->capacity, worst->reserve), text(worst->need),
      linked.program.roles[role].name, plan.method, fmt::join(largest, ", "),
      remedy ? fmt::format("this would fit, with {}: --set {}", text(remedy->need),
                           fmt::join(remedy->changes, " --set "))
             : std::string(
                   "no number of micro-batches, recomputation, sharding of states, optimizer on "
                   "the host, other mesh of these devices or smaller batch was found to fit")));
}

}  // namespace rehearse::planner
