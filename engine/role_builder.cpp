// See role_builder.h.
#include "engine/role_builder.h"

namespace rehearse {

RoleBuilder::RoleBuilder(std::string name, std::vector<Id> ranks, bool free_running)
    : role_{.name = std::move(name), .ranks = std::move(ranks), .free_running = free_running} {}

Id RoleBuilder::lane(const std::string& name) {
  auto [it, fresh] = lanes_.try_emplace(name, static_cast<Id>(role_.lanes.size()));
  if (fresh) role_.lanes.push_back({.name = name});
  return it->second;
}

Id RoleBuilder::storage(Storage storage) {
  if (auto it = views_.find(storage.name); it != views_.end()) return it->second;
  const Id id = static_cast<Id>(role_.storages.size());
  const View whole{.name = storage.name, .storage = id, .end = storage.elements};
  role_.storages.push_back(std::move(storage));
  return view(whole);
}

Id RoleBuilder::view(View view) {
  auto [it, fresh] = views_.try_emplace(view.name, static_cast<Id>(role_.views.size()));
  if (fresh) role_.views.push_back(std::move(view));
  return it->second;
}

Id RoleBuilder::view(const std::string& name) const { return views_.at(name); }

Id RoleBuilder::op(const std::string& lane_name, Work work, std::vector<Ref> refs, int shift) {
  role_.ops.push_back({.lane = lane(lane_name),
                       .work = work,
                       .refs = std::move(refs),
                       .shift = static_cast<std::uint8_t>(shift)});
  return static_cast<Id>(role_.ops.size() - 1);
}

void RoleBuilder::throttle(Id op, Id after) {
  // Of the same iteration, so the steps that they serve may differ.
  const int lag = role_.ops[after].shift - role_.ops[op].shift;
  if (lag < 0) return;
  role_.ops[op].after.push_back(
      {.op = after, .lag = static_cast<std::uint8_t>(lag), .throttle = true});
}

Id channel(Program& program, const std::string& name, Group group, Match match) {
  for (Id c = 0; c < program.channels.size(); ++c)
    if (program.channels[c].name == name) return c;
  program.channels.push_back({.name = name, .group = std::move(group), .match = match});
  return static_cast<Id>(program.channels.size() - 1);
}

}  // namespace rehearse
