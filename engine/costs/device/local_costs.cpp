#include "engine/costs/device/local_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/costs/network/piece.h"
#include "engine/model/tensor_split.h"
#include "engine/secure/group.h"

namespace rehearse::costs {

std::vector<Id> devices_of_ranks(const program::Program& program, const cluster::Cluster& cluster,
                                 std::vector<Id> given) {
  const auto world = static_cast<std::size_t>(program.world_size);
  const std::size_t devices = cluster.devices().size();
  if (given.empty()) {
    given.resize(world);
    std::iota(given.begin(), given.end(), Id{0});
  }
  if (given.size() != world)
    throw InputError(
        fmt::format("method.rank_to_device names {} devices for {} ranks", given.size(), world));
  std::vector<bool> used(devices);
  for (std::size_t rank = 0; rank < world; ++rank) {
    if (given[rank] >= devices)
      throw InputError(fmt::format("{} ranks do not fit on {} ({} devices): rank {} has none",
                                   world, cluster.name(), devices, rank));
    if (used[given[rank]] && cluster.shared_cores() == 0)
      throw InputError(fmt::format("method.rank_to_device gives {} to two ranks",
                                   cluster.devices()[given[rank]].name));
    used[given[rank]] = true;
  }
  return given;
}

LocalCosts::LocalCosts(const link::OrderedProgram& linked, const model::ModelSpec& model,
                       const cluster::Cluster& cluster, std::vector<Id> rank_to_device,
                       plan::Optimizer optimizer, const Profile* profile)
    : linked_(linked),
      model_(model),
      cluster_(cluster),
      device_of_(std::move(rank_to_device)),
      optimizer_(optimizer),
      profile_(profile),
      split_(model::tensor_split(linked.program)),
      prices_(model, profile),
      ranks_on_node_(static_cast<std::size_t>(std::max(1, cluster.nodes()))) {
  for (const Id device : device_of_) ++ranks_on_node_[devices()[device].node];
  for (const cluster::DeviceKind& kind : cluster.kinds())
    covered_.push_back(profile != nullptr && profile->covers(kind.name));
}

double LocalCosts::crowding(Id device) const {
  const int cores = cluster_.shared_cores();
  if (!profile_ || cores == 0) return 1;
  const auto load = [&](int ranks) {
    return std::max(1.0, double(ranks) * std::max(1, profile_->threads_per_rank) / cores);
  };
  return load(ranks_on_node_[devices()[device].node]) / load(std::max(1, profile_->ranks));
}

const StoragePrices& LocalCosts::storage() {
  if (!storage_) storage_.emplace(cluster_, device_of_);
  return *storage_;
}

namespace {

/// How many of the op's storages are in host memory.
std::ptrdiff_t in_host_memory(const program::Role& role, const program::Op& op) {
  return std::ranges::count_if(op.refs, [&](const program::Ref& ref) {
    return role.storages[role.views[ref.view].storage].place == program::Place::host;
  });
}

/// The masks that a kernel adds to levels or takes out of them: a client's own and one for each
/// neighbour; at the server the own ones of all clients, whose messages it reads.
std::int64_t masks_of(const program::Program& p, const program::Role& role, const program::Op& op,
                      const program::Kernel& kernel) {
  const std::int64_t shares = p.secure.neighbours + 1;
  if (kernel.kind == program::KernelKind::mask) return shares;
  if (kernel.kind != program::KernelKind::unmask) return 0;
  const std::int64_t members =
      bytes_of(p, role, *find(op, program::Slot::message)) / (shares * secure::key_bytes);
  return members - 1;
}

}  // namespace

bool LocalCosts::on_host(const program::Role& role, const program::Op& op) const {
  if (std::holds_alternative<program::Save>(op.work)) return true;
  if (std::holds_alternative<program::Copy>(op.work)) return in_host_memory(role, op) > 0;
  return cluster_.shared_cores() == 0 && place_of(role, op) == program::Place::host;
}

std::pair<Id, int> LocalCosts::alike(const program::Role& role, const program::Op& op,
                                     Id device) const {
  const cluster::Device& d = devices()[device];
  return on_host(role, op) ? std::pair(d.node, -1) : std::pair(d.kind, ranks_on_node_[d.node]);
}

LocalPrice LocalCosts::price(Id r, Id o, Id device) {
  const program::Role& role = linked_.program.roles[r];
  const program::Op& op = role.ops[o];
  const std::int64_t bytes = linked_.roles[r].ops[o].bytes;
  const cluster::DeviceKind& kind = cluster_.kind_of(device);
  const Id node = devices()[device].node;
  const program::Ref* param = find(op, program::Slot::param);
  const program::DType dtype = program::dtype_of(role, op);
  if (const auto* c = std::get_if<program::Compute>(&op.work))
    return prices_.pass(kind, c->segment, c->pass, c->samples, split_, dtype,
                        piece_of(linked_.program, role, *c, model_)) +
           prices_.conversion(
               kind, program::converted_gradients(linked_.program, role, op).elements, dtype);
  if (takes_snapshot(role, op))
    return {.seconds = storage().snapshot(node, bytes / 2, model_.software.staging)};
  if (std::holds_alternative<program::Copy>(op.work)) {  // reads and writes its bytes
    if (!on_host(role, op)) return prices_.kernel(kind, program::KernelKind::cast, bytes);
    const bool within = in_host_memory(role, op) == std::ssize(op.refs);
    return {.seconds = within ? storage().update(node, bytes) : storage().copy(node, bytes / 2)};
  }
  if (const auto* save = std::get_if<program::Save>(&op.work))
    return {.seconds = storage().save(node, bytes, *save)};
  if (on_host(role, op)) return {.seconds = storage().update(node, bytes)};
  if (const auto* k = std::get_if<program::Kernel>(&op.work)) {
    const std::int64_t masks = masks_of(linked_.program, role, op, *k);
    if (masks > 0) return prices_.masks(kind, k->kind, bytes, masks);
    return factorises(*k)
               ? prices_.factors(kind, k->kind, factors_of(linked_.program, role, op), bytes)
               : prices_.kernel(kind, k->kind, bytes);
  }
  return prices_.update(kind, optimizer_, dtype,
                        param ? elements_of(linked_.program, role, *param) : 0, bytes);
}

double LocalCosts::seconds(Id role, Id op, Id device) {
  const LocalPrice found = price(role, op, device);
  const program::Role& whose = linked_.program.roles[role];
  if (on_host(whose, whose.ops[op])) return found.seconds;
  // A profile from a simulation is calibrated only if the device it simulated is.
  if (!found.measured || profile_->simulated)
    calibrated_ = calibrated_ && !split_.fp8 && cluster_.kind_of(device).calibrated &&
                  model_.software.measured.most_ranks > 0;
  return found.measured ? found.seconds * crowding(device) : found.seconds;
}

}  // namespace rehearse::costs
