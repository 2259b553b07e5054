#include "engine/planner/search/evaluator.h"

#include <algorithm>
#include <numeric>

#include "engine/costs/device/host_lane.h"
#include "engine/execution/dry_run/fold.h"
#include "engine/link/rendezvous.h"
#include "engine/link/workspace.h"
#include "engine/methods/passes/passes.h"
#include "engine/methods/strategy.h"

namespace rehearse::planner {
namespace {

constexpr int steps = 3;  // of a dry run; only the last one counts, the others warm up

}  // namespace

Evaluator::Evaluator(const model::ModelSpec& model, const cluster::Cluster& cluster,
                     const costs::Profile* profile, std::span<const double> slow,
                     std::span<const double> pace)
    : model_(model),
      cluster_(cluster),
      profile_(profile),
      slow_(slow.begin(), slow.end()),
      pace_(pace.begin(), pace.end()),
      prices_(cluster, slow) {}

link::OrderedProgram Evaluator::ordered(const plan::Plan& plan) {
  return link::order(costs::with_host_lane(
      methods::choose_collectives(methods::compile_with_all_waits(plan, model_), cluster_,
                                  plan.placement.rank_to_device, prices_),
      model_));
}

costs::Costs Evaluator::costs_of(const link::OrderedProgram& linked, const plan::Plan& plan) {
  return {linked, model_, cluster_,
          costs::Conditions{.rank_to_device = plan.placement.rank_to_device,
                            .optimizer = plan.optimizer,
                            .profile = profile_,
                            .slow = slow_,
                            .prices = &prices_,
                            .pace = pace_}};
}

double Evaluator::seconds(const plan::Plan& plan) {
  const link::OrderedProgram linked = ordered(plan);
  std::vector<std::int64_t> bytes;
  ops_ = 0;
  for (const program::Role& role : linked.program.roles) {
    bytes.push_back(least_bytes(role));
    ops_ += role.ops.size();
  }
  least_ = fullest(bytes, linked, cluster_, plan.placement.rank_to_device);
  const costs::Costs costs = costs_of(linked, plan);
  const auto ends = dry_run_folded(linked, costs, execution::fold(linked, costs), steps);
  return std::max(ends[steps - 1], ends[steps - 2]) - ends[steps - 2];
}

link::LinkedProgram Evaluator::link_fully(const plan::Plan& plan) const {
  return link::link(methods::choose_collectives(methods::compile(plan, model_), cluster_,
                                                plan.placement.rank_to_device),
                    model_);
}

MemoryNeed Evaluator::memory(const link::LinkedProgram& linked, const plan::Plan& plan) const {
  std::vector<std::int64_t> bytes;
  for (const link::RoleMemory& m : linked.memory) bytes.push_back(m.total());
  return fullest(bytes, linked, cluster_, plan.placement.rank_to_device);
}

std::vector<StageBalance> Evaluator::balance(const plan::Plan& plan) {
  const link::OrderedProgram linked = ordered(plan);
  const costs::Costs costs = costs_of(linked, plan);
  const auto ends = dry_run_folded(linked, costs, execution::fold(linked, costs), steps);
  const double step = ends[steps - 1] - ends[steps - 2];
  std::vector<StageBalance> out(static_cast<std::size_t>(plan.mesh.pp));
  std::vector<double> ranks(out.size(), 0.0);
  // Each stage has one role for each kind of replica.
  const std::size_t kinds = linked.program.roles.size() / out.size();
  for (Id r = 0; r < linked.program.roles.size(); ++r) {
    const program::Role& role = linked.program.roles[r];
    StageBalance& stage = out[r / kinds];
    ranks[r / kinds] += static_cast<double>(role.ranks.size());
    for (Id o = 0; o < role.ops.size(); ++o) {
      const auto row = costs.seconds(r, o);
      const double sum = row.size() == 1 ? row[0] * static_cast<double>(role.ranks.size())
                                         : std::accumulate(row.begin(), row.end(), 0.0);
      (channel_of(role.ops[o].work) == none ? stage.compute : stage.communication) += sum;
    }
  }
  for (std::size_t s = 0; s < out.size(); ++s) {
    out[s].compute /= ranks[s], out[s].communication /= ranks[s];
    out[s].bubble = std::max(0.0, step - out[s].compute);
  }
  return out;
}

std::int64_t least_bytes(const program::Role& role) {
  std::int64_t fixed = 0;
  constexpr std::size_t not_value = ~std::size_t{0};
  std::vector<std::size_t> base;  // by storage: the number of its first instance
  std::size_t instances = 0;
  for (const program::Storage& s : role.storages) {
    const bool on_device = s.place == program::Place::device;
    base.push_back(s.life == program::Life::value && on_device ? instances : not_value);
    if (!on_device) continue;
    const std::int64_t bytes = s.elements * size_of(s.dtype);
    if (s.life == program::Life::value)
      instances += static_cast<std::size_t>(s.indices);
    else
      fixed += bytes * s.indices * s.versions;
  }
  std::vector<std::size_t> base_of_view;
  for (const program::View& view : role.views) base_of_view.push_back(base[view.storage]);
  std::vector<std::pair<Id, Id>> uses(instances, {none, none});  // by instance: first and last op
  for (Id o = 0; o < role.ops.size(); ++o)
    for (const program::Ref& ref : role.ops[o].refs) {
      if (base_of_view[ref.view] == not_value) continue;
      auto& [first, last] = uses[base_of_view[ref.view] + ref.index];
      if (first == none) first = o;
      last = o;
    }
  std::vector<std::int64_t> change(role.ops.size() + 1, 0);
  for (Id s = 0; s < role.storages.size(); ++s) {
    if (base[s] == not_value) continue;
    const std::int64_t bytes = role.storages[s].elements * size_of(role.storages[s].dtype);
    for (int i = 0; i < role.storages[s].indices; ++i)
      if (const auto [first, last] = uses[base[s] + static_cast<std::size_t>(i)]; first != none)
        change[first] += bytes, change[last + 1] -= bytes;
  }
  std::int64_t live = 0, most = 0;
  for (const std::int64_t c : change) most = std::max(most, live += c);
  return fixed + most;
}

MemoryNeed fullest(const std::vector<std::int64_t>& bytes_of_role,
                   const link::OrderedProgram& linked, const cluster::Cluster& cluster,
                   std::span<const Id> rank_to_device) {
  std::vector<std::int64_t> need(cluster.devices().size(), 0);  // ranks that share a device add up
  for (Id rank = 0; rank < linked.role_of.size(); ++rank)
    need[rank_to_device.empty() ? rank : rank_to_device[rank]] +=
        bytes_of_role[linked.role_of[rank]];
  MemoryNeed most;
  for (Id d = 0; d < need.size(); ++d)
    if (need[d] > 0) add_need(most, static_cast<double>(need[d]), cluster.kind_of(d));
  return most;
}

void add_need(MemoryNeed& most, double bytes, const cluster::DeviceKind& kind) {
  const double share = bytes / kind.usable().value;
  if (share > most.share)
    most = {share, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(kind.memory.value),
            static_cast<std::int64_t>(kind.reserve.value), kind.name};
}

}  // namespace rehearse::planner
