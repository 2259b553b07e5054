// Decides what `automatic` means for each collective by the closed form of costs.h on the cluster
// that the program will run on (as NCCL's tuning model does on its own graph), and writes it into
// the program, so that every executor plays the same rounds. Not among the candidates: the star,
// whose cost at its centre (n - 1 messages to be taken up one by one) the closed form does not
// know; and two trees for an all-reduce, which halving and doubling beats in rounds and equals in
// bytes.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/costs.h"
#include "engine/errors.h"
#include "engine/passes/passes.h"

namespace rehearse {
namespace {

constexpr Algorithm candidates[] = {Algorithm::ring, Algorithm::hierarchical,
                                    Algorithm::halving_doubling, Algorithm::double_tree};

bool serves(Algorithm algorithm, Move move, bool several_nodes) {
  const bool rooted = move == Move::broadcast || move == Move::reduce;
  return algorithm == Algorithm::ring || (algorithm == Algorithm::hierarchical && several_nodes) ||
         (algorithm == Algorithm::halving_doubling && !rooted) ||
         (algorithm == Algorithm::double_tree && rooted);
}

/// The groups of a channel that a role is in, as devices. Whoever meets the role sees the same.
struct Teams {
  std::vector<std::vector<Id>> devices = {};
  std::vector<int> roots = {};
  bool several_nodes = false;
};

class Chooser {
 public:
  Chooser(const Program& program, const Cluster& cluster, std::span<const Id> rank_to_device)
      : program_(program), cluster_(cluster), rank_to_device_(rank_to_device) {
    role_of_.assign(static_cast<std::size_t>(program.world_size), none);
    for (Id r = 0; r < program.roles.size(); ++r)
      for (Id rank : program.roles[r].ranks) role_of_[rank] = r;
  }

  Algorithm choose(Id r, const Op& op) {
    const Role& role = program_.roles[r];
    const auto& work = std::get<Collective>(op.work);
    std::int64_t elements = 0;
    DType wire = DType::f32;
    for (Slot slot : {Slot::source, Slot::target})
      if (const Ref* ref = find(op, slot); ref && elements_of(program_, role, *ref) > elements) {
        elements = elements_of(program_, role, *ref);
        wire = role.storages[role.views[ref->view].storage].dtype;
      }
    auto [it, fresh] = known_.try_emplace({r, work.channel, work.root, work.move, elements, wire});
    if (fresh) it->second = fastest(teams(r, work), work.move, elements, wire);
    return it->second;
  }

 private:
  Algorithm fastest(const Teams& teams, Move move, std::int64_t elements, DType wire) const {
    Algorithm choice = Algorithm::ring;
    double best = 0;
    for (Algorithm algorithm : candidates) {
      if (!serves(algorithm, move, teams.several_nodes)) continue;
      const auto seconds =
          collective_seconds(cluster_, move, algorithm, elements, wire, teams.devices, teams.roots);
      const double slowest = *std::max_element(seconds.begin(), seconds.end());
      if (algorithm != Algorithm::ring && slowest >= best) continue;
      best = slowest, choice = algorithm;
    }
    return choice;
  }

  const Teams& teams(Id r, const Collective& work) {
    auto [it, fresh] = teams_.try_emplace({r, work.channel, work.root});
    Teams& teams = it->second;
    if (!fresh) return teams;
    auto [groups, first] = groups_.try_emplace(work.channel);
    if (first) groups->second = groups_of(program_, program_.channels[work.channel]);
    for (const auto& group : groups->second) {
      if (std::none_of(group.begin(), group.end(), [&](Id rank) { return role_of_[rank] == r; }))
        continue;
      auto& members = teams.devices.emplace_back();
      teams.roots.push_back(0);
      for (Id rank : group) {
        if (role_of_[rank] == work.root) teams.roots.back() = static_cast<int>(members.size());
        members.push_back(rank_to_device_.empty() ? rank : rank_to_device_[rank]);
        teams.several_nodes = teams.several_nodes || cluster_.devices()[members.back()].node !=
                                                         cluster_.devices()[members[0]].node;
      }
    }
    return teams;
  }

  const Program& program_;
  const Cluster& cluster_;
  std::span<const Id> rank_to_device_;
  std::vector<Id> role_of_ = {};
  std::map<Id, std::vector<std::vector<Id>>> groups_ = {};  // by channel
  std::map<std::tuple<Id, Id, Id>, Teams> teams_ = {};      // by role, channel, root
  std::map<std::tuple<Id, Id, Id, Move, std::int64_t, DType>, Algorithm> known_ = {};
};

}  // namespace

Program choose_collectives(Program program, const Cluster& cluster,
                           std::span<const Id> rank_to_device) {
  for (Id rank = 0; rank < static_cast<Id>(program.world_size); ++rank)
    if ((rank_to_device.empty() ? rank : rank_to_device[rank]) >= cluster.devices().size())
      throw InputError(fmt::format("{} ranks do not fit on {} ({} devices): rank {} has none",
                                   program.world_size, cluster.name(), cluster.devices().size(),
                                   rank));
  Chooser chooser(program, cluster, rank_to_device);
  for (Id r = 0; r < program.roles.size(); ++r)
    for (Op& op : program.roles[r].ops)
      if (auto* work = std::get_if<Collective>(&op.work);
          work && work->algorithm == Algorithm::automatic)
        work->algorithm = chooser.choose(r, op);
  return program;
}

}  // namespace rehearse
