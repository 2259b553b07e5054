// Names instead of indices while a role is being written down: lanes, storages and views are made
// on first mention.
#pragma once
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/program.h"

namespace rehearse {

class RoleBuilder {
 public:
  RoleBuilder(std::string name, std::vector<Id> ranks, bool free_running = false);

  Id lane(const std::string& name);
  /// A storage and a view of all of it under the same name. Mentioned again with the same name: the
  /// same one.
  Id storage(Storage storage);
  Id view(View view);
  Id view(const std::string& name) const;
  bool has(const std::string& name) const { return views_.contains(name); }

  Id op(const std::string& lane, Work work, std::vector<Ref> refs, int shift = 0);
  void throttle(Id op, Id after);
  const Role& role() const { return role_; }
  Role take() { return std::move(role_); }

 private:
  Role role_;
  std::unordered_map<std::string, Id> lanes_ = {}, views_ = {};
};

/// The channel of that name, added when new.
Id channel(Program& program, const std::string& name, Group group = {},
           Match match = Match::sequence);

}  // namespace rehearse
