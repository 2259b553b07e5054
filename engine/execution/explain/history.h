// When every op of a run started and ended, kept so that a walk can ask what an op waited for: the
// op before it on its lane, the ops in its WaitTable, its partners in a rendezvous, the message
// that a Take took. In the dry run the latest of these ends exactly when the op starts.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/execution/dry_run/fold.h"
#include "engine/execution/trace/trace.h"
#include "engine/link/link.h"
#include "engine/link/rendezvous.h"

namespace rehearse::execution {

/// One op that one rank ran in one step. In a folded run a place is a class of equal ranks.
struct Instance {
  Id role = none, op = none;
  int step = 0;
  Id place = none;
  friend bool operator==(Instance, Instance) = default;
};

class History : public TraceSink {
 public:
  /// `fold`: of a folded run; null: each place is a rank. Both must outlive this object.
  History(const link::OrderedProgram& linked, const Fold* fold);
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override;

  const link::OrderedProgram& linked() const { return linked_; }
  std::size_t places(Id role) const { return roles_[role].places; }
  /// How many ranks a place stands for.
  int ranks_at(Id role, Id place) const { return roles_[role].ranks[place]; }
  /// Its first rank.
  Id rank_of(Id role, Id place) const;
  /// Whether the run had this instance. The next two are for instances that it had.
  bool ran(const Instance& at) const;
  double start(const Instance& at) const { return slot(at).start; }
  double end(const Instance& at) const { return slot(at).end; }
  /// The steps of a role that were begun.
  int steps(Id role) const { return roles_[role].steps; }
  /// The op of a step that ended last, of the roles that do not run freely. A step ends with it, or
  /// with that of an earlier step if this one ended later.
  const Instance& last_of(int step) const { return last_[static_cast<std::size_t>(step)]; }
  /// Appends what the op waited for, all that the run had: its lane first, then its waits, then
  /// those of its partners, then the message.
  void causes(const Instance& at, std::vector<Instance>& out);

 private:
  struct Slot {
    double start = 0, end = -1;                // end < 0: has not run
    std::uint32_t previous_on_lane = no_slot;  // the slot of the op before it
  };
  static constexpr std::uint32_t no_slot = ~std::uint32_t{0};
  struct RoleState {
    std::size_t places = 0;
    std::vector<int> ranks = {};  // by place
    int steps = 0;
    std::vector<Slot> slots = {};               // (step * ops + op) * places + place
    std::vector<std::uint32_t> lane_ends = {};  // lane * places + place: the last slot
  };
  std::size_t index(const Instance& at) const {
    const RoleState& role = roles_[at.role];
    const std::size_t ops = linked_.program.roles[at.role].ops.size();
    return (static_cast<std::size_t>(at.step) * ops + at.op) * role.places + at.place;
  }
  const Slot& slot(const Instance& at) const { return roles_[at.role].slots[index(at)]; }
  void own_causes(const Instance& at, std::vector<Instance>& out) const;
  const link::Rendezvous& rendezvous(std::span<const link::RoleOp> event, Id channel);
  void record_message(const Instance& at, double start, double end);

  const link::OrderedProgram& linked_;
  const Fold* fold_;
  std::vector<RoleState> roles_ = {};
  std::vector<Instance> last_ = {};                                // by step
  std::map<std::pair<Id, Id>, link::Rendezvous> rendezvous_ = {};  // by channel, first role
  std::map<Id, std::vector<Instance>> latest_puts_ = {};  // by channel: those that ended last
  std::map<std::pair<Id, std::size_t>, Instance> message_ = {};  // by role, index of a Take
};

}  // namespace rehearse::execution
