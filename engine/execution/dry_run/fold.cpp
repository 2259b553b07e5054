#include "engine/execution/dry_run/fold.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/link/rendezvous.h"

namespace rehearse::execution {
namespace {

class Refinement {
 public:
  Refinement(const link::OrderedProgram& linked, const costs::Costs& costs)
      : linked_(linked), costs_(costs) {
    for (const program::Role& role : linked.program.roles) {
      out_.class_of.emplace_back(role.ranks.size(), 0);
      classes_.push_back(1);
    }
  }

  Fold run(std::span<const Id> kinds) {
    split_by(kinds);
    split_by_costs();
    find_rendezvous();
    for (bool changed = true; changed;) {
      changed = false;
      for (const RolesRendezvous& met : rendezvous_) changed = split_by_groups(met) || changed;
      for (const auto& [a, b] : pairs_) {
        changed = split(a, [&, b = b](Id i) { return out_.class_of[b][i]; }) || changed;
        changed = split(b, [&, a = a](Id i) { return out_.class_of[a][i]; }) || changed;
      }
    }
    for (const auto& classes : out_.class_of) {
      auto& first = out_.representative.emplace_back();
      for (Id i = 0; i < classes.size(); ++i)
        if (classes[i] == first.size()) first.push_back(i);
    }
    return std::move(out_);
  }

 private:
  struct RolesRendezvous {
    std::vector<Id> roles = {};
    link::Rendezvous groups = {};
  };

  /// Splits the classes of a role by a key of its places. Returns whether any class was split.
  template <class Key>
  bool split(Id role, Key key) {
    auto& classes = out_.class_of[role];
    std::map<std::pair<Id, decltype(key(Id{}))>, Id> known;
    for (Id i = 0; i < classes.size(); ++i)
      classes[i] =
          known.try_emplace({classes[i], key(i)}, static_cast<Id>(known.size())).first->second;
    const bool grew = known.size() > classes_[role];
    classes_[role] = known.size();
    return grew;
  }

  void split_by(std::span<const Id> kinds) {
    if (kinds.empty()) return;
    for (Id r = 0; r < linked_.program.roles.size(); ++r)
      split(r, [&](Id i) { return kinds[linked_.program.roles[r].ranks[i]]; });
  }
  void split_by_costs() {
    for (Id r = 0; r < linked_.program.roles.size(); ++r) {
      std::set<const double*> seen;  // ops of equal cost share a row
      for (Id o = 0; o < linked_.program.roles[r].ops.size(); ++o)
        if (const auto row = costs_.seconds(r, o); row.size() > 1 && seen.insert(row.data()).second)
          split(r, [&](Id i) { return row[i]; });
    }
  }

  void find_rendezvous() {
    // The sets of roles that meet on a channel are disjoint, so one role identifies its set. A
    // transfer is identified by both of its roles.
    const std::size_t roles = linked_.program.roles.size();
    std::vector<bool> known(linked_.program.channels.size() * roles), transfers(roles * roles);
    for (const auto event : linked_.events) {
      const Id channel = channel_of(op_of(event[0]).work), first = event[0].role;
      if (channel == none) continue;
      const bool collective = std::holds_alternative<program::Collective>(op_of(event[0]).work);
      auto seen =
          collective ? known[channel * roles + first] : transfers[first * roles + event[1].role];
      if (seen) continue;
      seen = true;
      if (!collective) {
        pairs_.emplace_back(first, event[1].role);
        continue;
      }
      RolesRendezvous& met = rendezvous_.emplace_back();
      for (const link::RoleOp& m : event) met.roles.push_back(m.role);
      met.groups = rendezvous_of(linked_, channel, event);
    }
  }

  bool split_by_groups(const RolesRendezvous& met) {
    std::vector<std::vector<std::pair<Id, Id>>> members(met.groups.groups);  // (role, class)
    for (std::size_t m = 0; m < met.roles.size(); ++m)
      for (Id i = 0; i < met.groups.group[m].size(); ++i)
        if (const Id g = met.groups.group[m][i]; g != none) {
          const std::pair one{static_cast<Id>(m), out_.class_of[met.roles[m]][i]};
          if (members[g].empty() || members[g].back() != one) members[g].push_back(one);
        }
    std::map<std::vector<std::pair<Id, Id>>, Id> kinds;
    std::vector<Id> kind_of;
    for (auto& group : members) {
      std::sort(group.begin(), group.end());
      group.erase(std::unique(group.begin(), group.end()), group.end());
      kind_of.push_back(
          kinds.try_emplace(std::move(group), static_cast<Id>(kinds.size())).first->second);
    }
    bool changed = false;
    for (std::size_t m = 0; m < met.roles.size(); ++m)
      changed = split(met.roles[m],
                      [&](Id i) {
                        const Id g = met.groups.group[m][i];
                        return g == none ? none : kind_of[g];
                      }) ||
                changed;
    return changed;
  }

  const program::Op& op_of(link::RoleOp at) const {
    return linked_.program.roles[at.role].ops[at.op];
  }

  const link::OrderedProgram& linked_;
  const costs::Costs& costs_;
  std::vector<std::size_t> classes_ = {};  // by role
  std::vector<RolesRendezvous> rendezvous_ = {};
  std::vector<std::pair<Id, Id>> pairs_ = {};
  Fold out_ = {};
};

}  // namespace

std::vector<double> Fold::sizes(Id role) const {
  std::vector<double> out(representative[role].size());
  for (const Id one : class_of[role]) out[one] += 1;
  return out;
}

Fold fold(const link::OrderedProgram& linked, const costs::Costs& costs,
          std::span<const Id> kinds) {
  return Refinement(linked, costs).run(kinds);
}

link::Rendezvous folded(const link::Rendezvous& whole, std::span<const link::RoleOp> event,
                        const Fold& fold) {
  link::Rendezvous out;
  for (const link::RoleOp& m : event)
    out.group.emplace_back(fold.representative[m.role].size(), none);
  std::vector<Id> one(whole.groups, none);  // group -> folded group
  for (Id m = 0; m < event.size(); ++m)
    for (std::size_t i = 0; i < whole.group[m].size(); ++i) {
      const Id g = whole.group[m][i];
      if (g == none || one[g] != none) continue;
      const Id known = out.group[m][fold.class_of[event[m].role][i]];
      one[g] = known != none ? known : out.groups++;
      if (known != none) continue;
      // All members of the group, of every role, are in the same folded group.
      for (Id k = 0; k < event.size(); ++k)
        for (std::size_t j = 0; j < whole.group[k].size(); ++j)
          if (whole.group[k][j] == g) out.group[k][fold.class_of[event[k].role][j]] = one[g];
    }
  return out;
}

}  // namespace rehearse::execution
