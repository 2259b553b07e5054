#include "engine/goodput/checkpoint_prices.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse::goodput {
namespace {

using job::CheckpointKind;
using job::CheckpointPlace;

/// Bytes that each slot's ranks write, and the largest of one rank there.
struct Parts {
  std::vector<double> of_slot = {}, of_rank = {};
  double sum = 0;
};

/// `writers`: by rank, whether it writes a part. All parts are equal.
Parts equal_parts(double bytes, const Layout& layout, const std::vector<char>& writers) {
  const double part = bytes / static_cast<double>(std::count(writers.begin(), writers.end(), 1));
  Parts out{.of_slot = std::vector<double>(layout.node_of_slot.size()),
            .of_rank = std::vector<double>(layout.node_of_slot.size()),
            .sum = bytes};
  for (std::size_t r = 0; r < writers.size(); ++r)
    if (writers[r] != 0) {
      out.of_slot[layout.slot_of_rank[r]] += part;
      out.of_rank[layout.slot_of_rank[r]] = part;
    }
  return out;
}

class Rates {
 public:
  /// `staging`: software::Software::staging.
  Rates(const cluster::Cluster& cluster, const Layout& layout, BytesPerSecond staging = {})
      : cluster_(cluster), layout_(layout), staging_(staging), networks_(cluster.networks()) {}

  /// From devices to the memory of their hosts.
  double to_host(const Parts& parts) const {
    return slowest([&](std::size_t slot) {
      const cluster::Host& host = cluster_.host_of(layout_.node_of_slot[slot]);
      if (parts.of_rank[slot] > 0 && host.link.value == 0)
        throw InputError(
            fmt::format("checkpoint.kind: cluster {} does not state host_link of its "
                        "nodes",
                        cluster_.name()));
      return parts.of_rank[slot] > 0 ? parts.of_rank[slot] / host.link.value : 0;
    });
  }
  /// The same for a checkpoint, which the framework stages.
  double staged(const Parts& parts) const {
    const double link = to_host(parts);
    return staging_.value > 0 ? std::max(link, std::ranges::max(parts.of_rank) / staging_.value)
                              : link;
  }

  double over_network(const Parts& parts, double times = 1) const {
    return slowest([&](std::size_t slot) {
      const double rate = networks_[layout_.node_of_slot[slot]].value;
      return rate > 0 ? times * parts.of_slot[slot] / rate : 0;
    });
  }
  double to_disk(const Parts& parts, CheckpointPlace place) const {
    return disk(parts, place, &cluster::Disk::write);
  }
  double from_disk(const Parts& parts, CheckpointPlace place) const {
    return disk(parts, place, &cluster::Disk::read);
  }

 private:
  template <class F>
  double slowest(F of_slot) const {
    double most = 0;
    for (std::size_t slot = 0; slot < layout_.node_of_slot.size(); ++slot)
      most = std::max(most, of_slot(slot));
    return most;
  }
  double disk(const Parts& parts, CheckpointPlace place,
              BytesPerSecond cluster::Disk::*rate) const {
    if (place == CheckpointPlace::memory) return to_host(parts);
    if (place == CheckpointPlace::local)
      return slowest([&](std::size_t slot) {
        const cluster::Disk& d = cluster_.host_of(layout_.node_of_slot[slot]).disk;
        if (!d.known())
          throw InputError(
              fmt::format("checkpoint.place: local: cluster {} states no disk of its "
                          "nodes{}",
                          cluster_.name(), cluster_.shared_disk().known() ? "; shared fits" : ""));
        return parts.of_slot[slot] / (d.*rate).value;
      });
    const cluster::Disk& shared = cluster_.shared_disk();
    if (!shared.known())
      throw InputError(fmt::format("checkpoint.place: shared: cluster {} states no shared_disk{}",
                                   cluster_.name(),
                                   cluster_.host_of(0).disk.known() ? "; local fits" : ""));
    return std::max(parts.sum / (shared.*rate).value, over_network(parts));
  }

  const cluster::Cluster& cluster_;
  const Layout& layout_;
  BytesPerSecond staging_;
  std::vector<BytesPerSecond> networks_;
};

/// Bytes that a saved difference takes for each byte of the state.
double stored_part(const StateBytes& state, int bits) {
  const double saved = state.floats * (4 - job::bytes_of_difference(4, bits)) +
                       state.halves * (2 - job::bytes_of_difference(2, bits));
  return 1 - saved / state.whole;
}

/// Checkpoints in a node's memory at most: two that are complete, and one in the making.
constexpr double kept_in_memory = 3;

void check_host_memory(const Parts& parts, double copies, const Layout& layout,
                       const cluster::Cluster& cluster, const job::Checkpoint& how) {
  const bool kept = how.place == CheckpointPlace::memory && how.kind != CheckpointKind::peer;
  if (kept) copies += kept_in_memory;
  for (std::size_t slot = 0; slot < layout.node_of_slot.size(); ++slot) {
    const Bytes has = cluster.host_of(layout.node_of_slot[slot]).memory;
    const Bytes needs(copies * parts.of_slot[slot]);
    if (has.value > 0 && needs > has)
      throw InputError(fmt::format(
          "checkpoint.{} keeps {} in the memory of a host that has {}; {} keeps none there",
          kept ? "place: memory" : fmt::format("kind: {}", name_of(how.kind)), to_text(needs),
          to_text(has), kept ? "shared" : "sharded"));
  }
}

}  // namespace

StateBytes state_bytes(const link::OrderedProgram& linked, const plan::Plan& plan) {
  StateBytes out;
  const program::Program& p = linked.program;
  out.of_rank.resize(linked.role_of.size());
  const plan::Mesh& mesh = plan.mesh;
  const auto serves = [&](const program::Role& r) {
    return static_cast<int>(r.ranks.front()) >= mesh.world_size() - mesh.servers;
  };
  const bool served = std::ranges::any_of(p.roles, [&](const program::Role& r) {
    return serves(r) && std::ranges::any_of(r.storages, [](const program::Storage& s) {
             return s.life == program::Life::state;
           });
  });
  for (const program::Role& r : p.roles) {
    const bool server = serves(r), worker = served && !server;
    std::set<Id> moments, parameters, exact, own;
    for (const program::Op& op : r.ops)
      for (const program::Ref& ref : op.refs) {
        const Id storage = r.views[ref.view].storage;
        if (ref.slot == program::Slot::param || ref.slot == program::Slot::anchor)
          parameters.insert(storage);
        if (ref.layout.own != 0) own.insert(storage);
        if (ref.slot == program::Slot::moment1 || ref.slot == program::Slot::moment2 ||
            ref.slot == program::Slot::master || ref.slot == program::Slot::outer_moment)
          moments.insert(storage);
        if (ref.slot == program::Slot::moment2) exact.insert(storage);
      }
    for (Id s = 0; s < r.storages.size(); ++s) {
      const program::Storage& storage = r.storages[s];
      if (storage.life != program::Life::state) continue;
      const double bytes = static_cast<double>(storage.elements) * storage.indices *
                           storage.versions * static_cast<double>(size_of(storage.dtype));
      const bool moment = moments.contains(s), parameter = !moment && parameters.contains(s);
      const int zero = plan.exchange.sharding.zero;
      const bool copied =
          !server && !own.contains(s) && ((moment && zero == 0) || (parameter && zero < 3));
      const int groups = zero > 0 && (moment || parameter) ? mesh.dp / plan.shards() : 1;
      const double copies = std::max(1, copied ? mesh.dp : groups);
      const double once = bytes * static_cast<double>(r.ranks.size()) / copies;
      const auto width = static_cast<double>(size_of(storage.dtype));
      // The weights of workers are copies of those on the servers.
      if (!worker || !parameter) {
        out.whole += once;
        if ((moment && !exact.contains(s)) || parameter)
          (width == 4 ? out.floats : out.halves) += once / width;
      }
      for (const Id rank : r.ranks) out.of_rank[rank] += bytes;
    }
  }
  return out;
}

Layout layout_of(const cluster::Cluster& cluster, const plan::Plan& plan) {
  Layout out;
  const auto axes = plan.mesh.axes();
  std::map<Id, Id> slots;
  for (const Id device : plan.placement.rank_to_device) slots[cluster.devices()[device].node] = 0;
  for (auto& [node, slot] : slots) {
    slot = static_cast<Id>(out.node_of_slot.size());
    out.node_of_slot.push_back(node);
  }
  for (std::size_t rank = 0; rank < plan.placement.rank_to_device.size(); ++rank) {
    const Id device = plan.placement.rank_to_device[rank];
    out.slot_of_rank.push_back(slots.at(cluster.devices()[device].node));
    // The index along dp: digits of the rank, the last axis fastest.
    int left = static_cast<int>(rank);
    Id replica = none;
    for (const auto& [name, stated] : std::views::reverse(axes)) {
      const int size = std::max(1, stated);  // 0: the planner decides
      if (name == "dp") replica = static_cast<Id>(left % size);
      left /= size;
    }
    out.replica_of_rank.push_back(left == 0 ? replica : none);
  }
  return out;
}

CheckpointPrices checkpoint_prices(const job::Checkpoint& checkpoint, const StateBytes& state,
                                   const Layout& layout, const cluster::Cluster& cluster,
                                   BytesPerSecond staging) {
  const Rates rates(cluster, layout, staging);
  const std::size_t ranks = layout.slot_of_rank.size();
  const std::vector<char> all(ranks, 1);
  const Parts parts = equal_parts(state.whole, layout, all);
  const double write = rates.to_disk(parts, checkpoint.place);
  const double read = rates.from_disk(parts, checkpoint.place);
  // Every unique byte is read once and spread over the network to the ranks that have a copy.
  Parts resident = parts;
  std::fill(resident.of_slot.begin(), resident.of_slot.end(), 0);
  for (std::size_t r = 0; r < ranks; ++r)
    resident.of_slot[layout.slot_of_rank[r]] += state.of_rank[r];
  const double load = std::max(read, rates.over_network(resident));
  const bool local = checkpoint.place != CheckpointPlace::shared;
  // What a node's death can destroy goes to the shared disk as well, now and then.
  const bool shared = cluster.shared_disk().known();
  const double whole = shared ? rates.to_disk(parts, CheckpointPlace::shared) : write;
  const double load_whole = shared ? std::max(rates.from_disk(parts, CheckpointPlace::shared),
                                              rates.over_network(resident))
                                   : 0;  // the run begins anew
  const auto as_ticks = [](double s) { return ticks(Seconds(s)); };
  CheckpointPrices out{.load = as_ticks(load),
                       .load_whole = as_ticks(local ? load_whole : load),
                       .local = local,
                       .on_disk = checkpoint.kind != CheckpointKind::peer &&
                                  checkpoint.place != CheckpointPlace::memory,
                       .group = local ? 1 : 0,
                       .whole_every = !local   ? 1
                                      : shared ? checkpoint.full_every
                                               : 0};
  const double n = checkpoint.full_every;
  switch (checkpoint.kind) {
    case CheckpointKind::full: {
      std::vector<char> writers(ranks);
      for (std::size_t r = 0; r < ranks; ++r)
        writers[r] = layout.replica_of_rank[r] == 0 || layout.replica_of_rank[r] == none ? 1 : 0;
      const Parts some = equal_parts(state.whole, layout, writers);
      check_host_memory(some, 0, layout, cluster, checkpoint);
      const double one = std::max(rates.to_disk(some, checkpoint.place), rates.staged(some));
      out.stall = as_ticks(local ? ((n - 1) * one + std::max(one, whole)) / n : one);
      break;
    }
    case CheckpointKind::sharded: {
      check_host_memory(parts, 0, layout, cluster, checkpoint);
      const double one = std::max(write, rates.staged(parts));
      out.stall = as_ticks(local ? ((n - 1) * one + std::max(one, whole)) / n : one);
      break;
    }
    case CheckpointKind::incremental: {
      check_host_memory(parts, 0, layout, cluster, checkpoint);
      const double one = std::max(write, rates.staged(parts));
      const double others = (n - 1) / n * checkpoint.changed;
      out.stall = as_ticks((local ? std::max(one, whole) : one) / n +
                           one * others * stored_part(state, checkpoint.bits));
      // The last whole one, and an increment unless it is the newest one itself.
      out.load = as_ticks(load * (1 + others * stored_part(state, checkpoint.bits)));
      if (!local) out.load_whole = out.load;
      break;
    }
    case CheckpointKind::async:
      check_host_memory(parts, 1, layout, cluster, checkpoint);
      out.stall = as_ticks(rates.staged(parts));
      out.persist = as_ticks(local ? ((n - 1) * write + std::max(write, whole)) / n : write);
      break;
    case CheckpointKind::peer: {
      const std::size_t nodes = layout.node_of_slot.size();
      if (static_cast<std::size_t>(checkpoint.group) > nodes)
        throw InputError(fmt::format(
            "checkpoint.group: {}: the job has {} nodes; {}", checkpoint.group, nodes,
            nodes < 2 ? "checkpoint.kind = \"peer\" needs 2" : fmt::format("at most {}", nodes)));
      // Two snapshots of each part: one complete, one in the making.
      check_host_memory(parts, 2.0 * checkpoint.group, layout, cluster, checkpoint);
      out.stall = as_ticks(rates.staged(parts));
      out.persist = as_ticks(rates.over_network(parts, checkpoint.group - 1));
      out.load = as_ticks(std::max(rates.to_host(parts), rates.over_network(resident)));
      out.load_whole = as_ticks(load_whole);
      out.persist_whole = as_ticks(whole);
      out.group = checkpoint.group;
      out.whole_every = shared ? checkpoint.full_every : 0;
      break;
    }
  }
  return out;
}

Ticks copy_time(const StateBytes& state, const Layout& layout, const cluster::Cluster& cluster) {
  Parts resident{.of_slot = std::vector<double>(layout.node_of_slot.size()),
                 .of_rank = std::vector<double>(layout.node_of_slot.size())};
  for (std::size_t r = 0; r < layout.slot_of_rank.size(); ++r) {
    if (layout.replica_of_rank[r] == none) continue;  // nobody has what a parameter server has
    resident.of_slot[layout.slot_of_rank[r]] += state.of_rank[r];
    double& one = resident.of_rank[layout.slot_of_rank[r]];
    one = std::max(one, state.of_rank[r]);
  }
  const Rates rates(cluster, layout);
  const double network = rates.over_network(resident);
  return ticks(Seconds(network > 0 ? network : rates.to_host(resident)));
}

}  // namespace rehearse::goodput
