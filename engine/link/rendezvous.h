// Which ranks of which roles meet in a collective event, as flat tables that executors walk.
#pragma once
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/link/link.h"

namespace rehearse::link {

struct Rendezvous {
  Id groups = 0;
  /// [member of the event][place] -> group.
  std::vector<std::vector<Id>> group = {};
  /// Each group's lowest rank, and which member of the event its role is: the key of link_factor.
  std::vector<Id> lowest = {}, lowest_member = {};
  /// When the event has one role and its groups lie regularly: place = (outer * size + i) * inner +
  /// s is the i-th of group outer * inner + s. size 0: irregular.
  Id outer = 0, size = 0, inner = 0;
};

/// `event`: all (role, op) of one collective event, all on `channel`.
Rendezvous rendezvous_of(const LinkedProgram& linked, Id channel, std::span<const RoleOp> event);

/// The same, group by group: members in the order of ranks as (rank, (member, place)), their
/// devices, and where among them the root stands (0 where there is none).
struct Gathering {
  Rendezvous who = {};
  std::vector<std::vector<std::pair<Id, RoleOp>>> members = {};
  std::vector<std::vector<Id>> devices = {};
  std::vector<int> roots = {};
};
/// `root`: a role, or none. `device_of`: by rank.
Gathering gathering_of(const LinkedProgram& linked, Id channel, std::span<const RoleOp> event,
                       Id root, std::span<const Id> device_of);

/// Which ranks meet in an op, for walks that ask op by op: groups are made once a channel.
class RanksThatMeet {
 public:
  explicit RanksThatMeet(const LinkedProgram& linked);  // which must outlive it
  /// All that meet with this rank, in rising order; empty for an op that meets nobody.
  std::vector<Id> of(const program::Work& work, Id rank);

 private:
  struct Groups {
    std::vector<Id> of_rank = {};  // none: in no group
    std::vector<std::vector<Id>> members = {};
  };
  const Groups& groups(Id channel);

  const LinkedProgram& linked_;
  std::vector<std::optional<Groups>> groups_;  // by channel
};

}  // namespace rehearse::link
