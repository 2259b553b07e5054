// Which ranks of which roles meet in a collective, as flat tables that executors walk. A place is a
// rank's index in its role.
#pragma once
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/link/link.h"

namespace rehearse::link {

/// The groups that one event splits into. A member of the event is one of its (role, op) pairs.
struct Rendezvous {
  Id groups = 0;
  /// [member][place]: the group, or none.
  std::vector<std::vector<Id>> group = {};
  /// By group: its lowest rank, and the member whose role plays that rank (the key of link_factor).
  std::vector<Id> lowest = {}, lowest_member = {};
  /// For one role whose groups are strided: place (o * size + i) * inner + s is the i-th rank of
  /// group o * inner + s, for o < outer, i < size, s < inner. size 0: the groups are irregular.
  Id outer = 0, size = 0, inner = 0;
};

/// `event`: all (role, op) of one collective, all on `channel`.
Rendezvous rendezvous_of(const OrderedProgram& linked, Id channel, std::span<const RoleOp> event);

/// A Rendezvous with the ranks of each group.
struct Gathering {
  Rendezvous who = {};
  /// [group]: its ranks in ascending order, as (rank, (member, place)).
  std::vector<std::vector<std::pair<Id, RoleOp>>> members = {};
  std::vector<std::vector<Id>> devices = {};  // [group]: the devices of `members`
  /// [group]: the root's index in `members`, or the distance of a rotate; 0: neither.
  std::vector<int> roots = {};
};
/// `device_of`: [rank].
Gathering gathering_of(const OrderedProgram& linked, const program::Collective& work,
                       std::span<const RoleOp> event, std::span<const Id> device_of);

/// Which ranks meet in an op, for callers that ask op by op. Keeps the groups of each channel.
class RanksThatMeet {
 public:
  explicit RanksThatMeet(const OrderedProgram& linked);  // `linked` must outlive this object
  /// All ranks that meet in this rank's op, itself included, in ascending order. Empty for ops that
  /// are neither collectives nor sends nor receives.
  std::vector<Id> of(const program::Work& work, Id rank);

 private:
  struct Groups {
    std::vector<Id> of_rank = {};  // [rank]: its group; none: in no group
    std::vector<std::vector<Id>> members = {};
  };
  const Groups& groups(Id channel);

  const OrderedProgram& linked_;
  std::vector<std::optional<Groups>> groups_;  // [channel]; empty until asked for
};

}  // namespace rehearse::link
