#include "engine/program/role_builder.h"

#include <algorithm>
#include <cassert>
#include <functional>

namespace rehearse::program {

RoleBuilder::RoleBuilder(std::string name, std::vector<Id> ranks, bool free_running)
    : role_{.name = std::move(name), .ranks = std::move(ranks), .free_running = free_running} {}

Id RoleBuilder::lane(std::string_view name) {
  for (Id l = 0; l < role_.lanes.size(); ++l)  // a role has few lanes
    if (role_.lanes[l].name == name) return l;
  role_.lanes.push_back({.name = std::string(name)});
  return static_cast<Id>(role_.lanes.size() - 1);
}

namespace {
std::uint32_t hash_of(std::string_view name) {
  return static_cast<std::uint32_t>(std::hash<std::string_view>()(name));
}
}  // namespace

Id RoleBuilder::storage(Storage storage) {
  const std::uint32_t hash = hash_of(storage.name);
  if (const Id known = find(storage.name, hash); known != none) return known;
  const Id id = static_cast<Id>(role_.storages.size());
  View whole{.name = storage.name, .storage = id, .end = storage.elements};
  role_.storages.push_back(std::move(storage));
  return add(std::move(whole), hash);
}

Id RoleBuilder::view(View view) {
  const std::uint32_t hash = hash_of(view.name);
  const Id known = find(view.name, hash);
  return known != none ? known : add(std::move(view), hash);
}

Id RoleBuilder::add(View view, std::uint32_t hash) {
  role_.views.push_back(std::move(view));
  const Id id = static_cast<Id>(role_.views.size() - 1);
  if (2 * role_.views.size() > places_.size()) {
    const std::vector<Place> old_places = std::move(places_);
    places_.assign(std::max<std::size_t>(64, 2 * old_places.size()), {});
    for (const Place& place : old_places)
      if (place.view != none) remember(place);
  }
  remember({hash, id});
  return id;
}

Id RoleBuilder::view(std::string_view name) const {
  const Id known = find(name, hash_of(name));
  assert(known != none);
  return known;
}

bool RoleBuilder::has(std::string_view name) const { return find(name, hash_of(name)) != none; }

Id RoleBuilder::find(std::string_view name, std::uint32_t hash) const {
  if (places_.empty()) return none;
  for (std::size_t at = hash;; ++at) {
    const Place& place = places_[at & (places_.size() - 1)];
    if (place.view == none || (place.hash == hash && role_.views[place.view].name == name))
      return place.view;
  }
}

void RoleBuilder::remember(Place place) {
  std::size_t at = place.hash;
  while (places_[at & (places_.size() - 1)].view != none) ++at;
  places_[at & (places_.size() - 1)] = place;
}

Id RoleBuilder::op(std::string_view lane_name, Work work, std::vector<Ref> refs, int shift,
                   When when) {
  role_.ops.push_back({.lane = lane(lane_name),
                       .work = work,
                       .refs = std::move(refs),
                       .shift = shift,
                       .when = when});
  return static_cast<Id>(role_.ops.size() - 1);
}

void RoleBuilder::throttle(Id op, Id after, int iterations_before) {
  // In one iteration the two ops serve steps that differ by the difference of their shifts.
  const int lag = iterations_before + role_.ops[after].shift - role_.ops[op].shift;
  if (lag < 0) return;
  role_.ops[op].after.push_back({.op = after, .lag = lag, .throttle = true});
}

Id channel(Program& program, std::string_view name, Group group, Match match) {
  for (Id c = 0; c < program.channels.size(); ++c)
    if (program.channels[c].name == name) return c;
  program.channels.push_back(
      {.name = std::string(name), .group = std::move(group), .match = match});
  return static_cast<Id>(program.channels.size() - 1);
}

}  // namespace rehearse::program
