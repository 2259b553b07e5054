// Builds a role with names in place of indices. Lanes, storages and views are created when a name
// is first used.
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
  /// Adds a storage and a view of all of it, under one name, and returns the view. If a view of
  /// that name exists, returns it instead.
  Id storage(Storage storage);
  /// Adds a view and returns it. If a view of that name exists, returns it instead.
  Id view(View view);
  /// The view of that name, which must exist.
  Id view(std::string_view name) const;
  bool has(std::string_view name) const;

  Id op(std::string_view lane, Work work, std::vector<Ref> refs, int shift = 0, When when = {});
  /// Makes `op` wait, as a throttle, for the instance of `after` so many iterations before (0: in
  /// the same one). Does nothing when that instance would be of a later step than `op`.
  void throttle(Id op, Id after, int iterations_before = 0);
  /// Reserves room for this many more ops.
  void expect(std::size_t ops) { role_.ops.reserve(role_.ops.size() + ops); }
  const Role& role() const { return role_; }
  Role take() { return std::move(role_); }

 private:
  Role role_;
  // A hash table of views by name, with linear probing. Its size is a power of two, and at least
  // half of its places are free. The names are in the role.
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

/// The channel of that name. Adds it when there is none.
Id channel(Program& program, std::string_view name, Group group = {},
           Match match = Match::sequence);

}  // namespace rehearse::program
