#include "engine/methods/lowering/roles.h"

#include <algorithm>
#include <map>

#include "engine/base/numbers/divisors.h"
#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::methods {

std::string StageRole::name(const plan::Plan& plan) const {
  return (plan.mesh.pp > 1 ? "stage" + std::to_string(stage) : "worker") +
         (kinds > 1 ? "." + std::to_string(kind) : "");
}

program::Program make_mesh(const plan::Plan& plan) {
  program::Program p{.method = plan.method, .world_size = plan.mesh.world_size(), .fp8 = plan.fp8};
  const int group = plan.exchange.group();
  for (const auto& [name, size] : plan.mesh.axes()) {
    if (name == "cp") {
      if (size > 1)
        p.mesh.push_back({.name = name,
                          .size = size,
                          .cut = plan.mesh.context == plan::Context::zigzag
                                     ? program::Cut::zigzag
                                     : program::Cut::contiguous});
    } else if (name == "dp" && group > 1 && group < size) {
      p.mesh.push_back({.name = "replicate", .size = size / group});
      p.mesh.push_back({.name = "shard", .size = group});
    } else {
      p.mesh.push_back({.name = name, .size = size});
    }
  }
  return p;
}

int group_in_nodes(const plan::Plan& plan) {
  const program::Program program = make_mesh(plan);
  if (plan.placement.node_of.size() != static_cast<std::size_t>(program.world_size)) return 0;
  const auto replicas = groups_of(program, {.group = {.axes = data_axes(program)}});
  const auto within = [&](int size) {
    for (const std::vector<Id>& ranks : replicas)
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const std::size_t first =
            i / static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
        if (plan.placement.node_of[ranks[i]] != plan.placement.node_of[ranks[first]]) return false;
      }
    return true;
  };
  int best = 0;
  for (const int size : divisors(plan.mesh.dp))
    if (size > 1 && within(size)) best = size;
  return best;
}

std::vector<Id> ranks_of_stage(const program::Program& program, int stage) {
  Id inner = 1, size = 1, mesh_ranks = 1;
  bool found = false;
  for (std::size_t a = program.mesh.size(); a-- > 0;) {
    mesh_ranks *= static_cast<Id>(program.mesh[a].size);
    if (program.mesh[a].name == "pp")
      found = true, size = static_cast<Id>(program.mesh[a].size);
    else if (!found)
      inner *= static_cast<Id>(program.mesh[a].size);
  }
  std::vector<Id> ranks;
  for (Id r = 0; r < mesh_ranks; ++r)
    if (r / inner % size == static_cast<Id>(stage)) ranks.push_back(r);
  return ranks;
}

namespace {

/// A number for each key: equal keys have equal numbers, in order of first appearance.
std::vector<int> numbered(const std::vector<std::vector<int>>& keys) {
  std::map<std::vector<int>, int> known;
  std::vector<int> out;
  for (const auto& key : keys)
    out.push_back(known.try_emplace(key, static_cast<int>(known.size())).first->second);
  return out;
}

/// The leaders of one stage, by place (index among the stage's ranks).
struct Leadership {
  std::vector<std::size_t> leader = {};  // [place]: the place of its leader
  std::vector<int> led = {};             // [place]: how many places it leads, itself included
  std::vector<int> leaders = {};         // [place]: how many leaders its data-parallel group has
};

Leadership leadership(const program::Program& program, const std::vector<Id>& ranks,
                      const std::vector<Id>& leaders) {
  Leadership out{.led = std::vector<int>(ranks.size()), .leaders = std::vector<int>(ranks.size())};
  std::map<Id, std::size_t> place;
  for (std::size_t i = 0; i < ranks.size(); ++i) place[ranks[i]] = i;
  for (const Id rank : ranks) out.leader.push_back(place.at(leaders[rank]));
  for (const std::size_t leader : out.leader) ++out.led[leader];
  const auto groups = groups_of(program, {.group = {.axes = data_axes(program)}});
  for (const auto& group : groups) {
    int count = 0;
    for (const Id rank : group) count += leaders[rank] == rank;
    for (const Id rank : group)
      if (const auto at = place.find(rank); at != place.end()) out.leaders[at->second] = count;
  }
  return out;
}

}  // namespace

std::vector<StageRole> stage_roles(const program::Program& program, const plan::Plan& plan,
                                   const GradientSync& sync) {
  std::vector<std::vector<Id>> stages;
  for (int s = 0; s < plan.mesh.pp; ++s) stages.push_back(ranks_of_stage(program, s));
  const std::vector<Id> leaders = sync.leaders(plan, program);
  std::vector<Leadership> led;
  if (!leaders.empty())
    for (const auto& ranks : stages) led.push_back(leadership(program, ranks, leaders));
  const auto samples_of = [&](Id rank) {
    return plan.samples(tensors::place_of(program, data_axes(program), rank).index);
  };
  const auto context_of = [&](Id rank) {
    return plan.mesh.rings() ? tensors::place_along(program, "cp", rank).index : 0;
  };
  // keys[i]: the properties of the replica at place i, on all stages. Equal ones share a role.
  std::vector<std::vector<int>> keys;
  for (std::size_t i = 0; i < stages[0].size(); ++i) {
    keys.push_back({samples_of(stages[0][i]), context_of(stages[0][i])});
    for (const Leadership& l : led)
      keys[i].insert(keys[i].end(), {l.leader[i] == i, l.led[i] > 1, l.leaders[i]});
  }
  std::vector<int> kind = numbered(keys);
  // A collective names its root by role, so all ranks of a role need leaders of one kind. Split
  // kinds until that holds.
  for (int kinds = 0; kinds != *std::max_element(kind.begin(), kind.end()) + 1;) {
    kinds = *std::max_element(kind.begin(), kind.end()) + 1;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] = {kind[i]};
      for (const Leadership& l : led) keys[i].push_back(kind[l.leader[i]]);
    }
    kind = numbered(keys);
  }
  const int kinds = *std::max_element(kind.begin(), kind.end()) + 1;
  std::vector<StageRole> roles;
  for (int s = 0; s < plan.mesh.pp; ++s)
    for (int k = 0; k < kinds; ++k) {
      const auto& ranks = stages[static_cast<std::size_t>(s)];
      StageRole role{.stage = s, .kind = k, .kinds = kinds};
      for (std::size_t i = 0; i < ranks.size(); ++i)
        if (kind[i] == k) role.ranks.push_back(ranks[i]);
      role.samples = samples_of(role.ranks[0]), role.context = context_of(role.ranks[0]);
      if (!led.empty()) {
        const Leadership& l = led[static_cast<std::size_t>(s)];
        const auto first =
            static_cast<std::size_t>(std::find(kind.begin(), kind.end(), k) - kind.begin());
        role.leader_kind = kind[l.leader[first]];
        role.leader = l.leader[first] == first;
        role.alone = role.leader && l.led[first] == 1;
        role.leaders = l.leaders[first];
      }
      roles.push_back(std::move(role));
    }
  return roles;
}

}  // namespace rehearse::methods
