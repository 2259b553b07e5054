// Names instead of indices while a role is being written down: lanes, storages and views are made
// on first mention.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::program {

class RoleBuilder {
 public:
  RoleBuilder(std::string name, std::vector<Id> ranks, bool free_running = false);

  Id lane(std::string_view name);
  /// A storage and a view of all of it under the same name. Mentioned again with the same name: the
  /// same one.
  Id storage(Storage storage);
  Id view(View view);
  Id view(std::string_view name) const;
  bool has(std::string_view name) const;

  Id op(std::string_view lane, Work work, std::vector<Ref> refs, int shift = 0);
  void throttle(Id op, Id after);
  /// About as many ops are to come.
  void expect(std::size_t ops) { role_.ops.reserve(role_.ops.size() + ops); }
  const Role& role() const { return role_; }
  Role take() { return std::move(role_); }

 private:
  Role role_;
  // Views by the hash of their name, at the first free place behind it; a power of two of places,
  // at least half of them free. The names themselves are in the role.
  struct Place {
    std::uint32_t hash = 0;
    Id view = none;
  };
  std::vector<Place> places_ = {};

  Id find(std::string_view name, std::uint32_t hash) const;
  Id add(View view, std::uint32_t hash);
  void remember(Place place);
};

inline Ref ref(Id view, Slot slot, Mode mode, int index = 0, int age = 0, Layout layout = {}) {
  return {.view = view, .slot = slot, .mode = mode, .index = index, .age = age, .layout = layout};
}

/// The channel of that name, added when new.
Id channel(Program& program, std::string_view name, Group group = {},
           Match match = Match::sequence);

}  // namespace rehearse::program
