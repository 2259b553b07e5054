// Replaces `automatic` (and an algorithm that serves none of the groups, as in_network inside a
// node) for each collective by the fastest algorithm according to the closed-form costs of costs.h
// on the target cluster (NCCL's tuning model does the same on its graph). The choice is written
// into the program, so that every executor runs the same rounds. Two algorithms are not candidates:
// the star, because the closed form lacks the cost at its centre (n - 1 messages received one by
// one); and the double tree for all-reduce, because halving-doubling needs fewer rounds and as many
// bytes.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/costs/network/collective_prices.h"
#include "engine/methods/passes/passes.h"

namespace rehearse::methods {
namespace {

class Chooser {
 public:
  Chooser(const program::Program& program, std::span<const Id> rank_to_device,
          costs::CollectivePrices& prices)
      : program_(program), rank_to_device_(rank_to_device), prices_(prices) {
    role_of_.assign(static_cast<std::size_t>(program.world_size), none);
    for (Id r = 0; r < program.roles.size(); ++r)
      for (Id rank : program.roles[r].ranks) role_of_[rank] = r;
    asked_.resize(program.roles.size() * program.channels.size() * moves);
  }

  program::Algorithm choose(Id r, const program::Op& op) {
    const program::Role& role = program_.roles[r];
    const auto& work = std::get<program::Collective>(op.work);
    std::int64_t elements = 0;
    program::DType wire = program::DType::f32;
    for (program::Slot slot : {program::Slot::source, program::Slot::target})
      if (const program::Ref* ref = find(op, slot);
          ref && elements_of(program_, role, *ref) > elements) {
        elements = elements_of(program_, role, *ref);
        wire = role.storages[role.views[ref->view].storage].dtype;
      }
    // Most layers repeat the question of the layer before, so answers are cached.
    Asked& asked = asked_[(r * program_.channels.size() + work.channel) * moves +
                          static_cast<std::size_t>(work.move)];
    if (asked.elements != elements || asked.wire != wire || asked.root != work.root)
      asked = {elements, wire, work.root,
               prices_.fastest(groups(r, work), work.move, elements, wire)};
    return asked.fastest;
  }

  /// Whether the stated algorithm serves none of the groups: switches are asked to add for groups
  /// that lie within nodes, or the library does not run the algorithm on these devices. Throws
  /// InputError when a group has a switch between its members that cannot add.
  bool serves_none(Id r, const program::Collective& work) {
    const Id set = groups(r, work);
    if (work.algorithm != program::Algorithm::in_network)
      return !prices_.serves(set, work.move, work.algorithm);
    if (!prices_.several_nodes(set)) return true;
    if (const std::string& why = prices_.why_not_in_network(set); !why.empty())
      throw InputError("method.collective: " + why);
    return false;
  }

 private:
  static constexpr std::size_t moves = spellings(program::Move{}).size();
  struct Asked {
    std::int64_t elements = -1;
    program::DType wire = program::DType::f32;
    Id root = none;
    program::Algorithm fastest = program::Algorithm::automatic;
  };

  /// The groups (as devices) of a channel that a role is in, plus the groups of all roles that it
  /// meets there, directly or through others. Ranks that meet must choose the same algorithm, even
  /// where one role is in groups of several sizes.
  Id groups(Id r, const program::Collective& work) {
    auto [it, fresh] = sets_.try_emplace({r, work.channel, work.root}, none);
    if (!fresh) return it->second;
    auto [groups, first] = groups_.try_emplace(work.channel);
    if (first) groups->second = groups_of(program_, program_.channels[work.channel]);
    std::vector<bool> met(program_.roles.size());
    met[r] = true;
    const auto meets = [&](const std::vector<Id>& group) {
      return std::any_of(group.begin(), group.end(), [&](Id rank) { return met[role_of_[rank]]; });
    };
    for (bool more = true; more;) {
      more = false;
      for (const auto& group : groups->second)
        if (meets(group))
          for (const Id rank : group)
            if (!met[role_of_[rank]]) met[role_of_[rank]] = more = true;
    }
    std::vector<std::vector<Id>> devices;
    std::vector<int> roots;
    for (const auto& group : groups->second) {
      if (!meets(group)) continue;
      auto& members = devices.emplace_back();
      members.reserve(group.size());
      roots.push_back(0);
      for (Id rank : group) {
        if (role_of_[rank] == work.root) roots.back() = static_cast<int>(members.size());
        members.push_back(rank_to_device_.empty() ? rank : rank_to_device_[rank]);
      }
    }
    return it->second = prices_.groups(devices, roots);
  }

  const program::Program& program_;
  std::span<const Id> rank_to_device_;
  costs::CollectivePrices& prices_;
  std::vector<Id> role_of_ = {};
  std::vector<Asked> asked_ = {};                           // [role][channel][move]
  std::map<Id, std::vector<std::vector<Id>>> groups_ = {};  // by channel
  std::map<std::tuple<Id, Id, Id>, Id> sets_ = {};          // by role, channel, root
};

}  // namespace

program::Program choose_collectives(program::Program program, const cluster::Cluster& cluster,
                                    std::span<const Id> rank_to_device) {
  costs::CollectivePrices prices(cluster);
  return choose_collectives(std::move(program), cluster, rank_to_device, prices);
}

program::Program choose_collectives(program::Program program, const cluster::Cluster& cluster,
                                    std::span<const Id> rank_to_device,
                                    costs::CollectivePrices& prices) {
  for (Id rank = 0; rank < static_cast<Id>(program.world_size); ++rank)
    if ((rank_to_device.empty() ? rank : rank_to_device[rank]) >= cluster.devices().size())
      throw InputError(fmt::format("{} ranks do not fit on {} ({} devices): rank {} has none",
                                   program.world_size, cluster.name(), cluster.devices().size(),
                                   rank));
  Chooser chooser(program, rank_to_device, prices);
  for (Id r = 0; r < program.roles.size(); ++r)
    for (program::Op& op : program.roles[r].ops)
      if (auto* work = std::get_if<program::Collective>(&op.work)) {
        if (work->algorithm == program::Algorithm::automatic || chooser.serves_none(r, *work))
          work->algorithm = chooser.choose(r, op);
      }
  return program;
}

}  // namespace rehearse::methods
