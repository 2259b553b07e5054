// Folding: an undisturbed run computes one rank for each class of equal ranks. Two ranks of a role
// are equal when their ops cost the same and they meet equal ranks; then their ops start and end at
// the same times. The classes are the coarsest equitable partition, found by refinement: start with
// one class per role, split it by costs, then split by the classes that its ranks meet until
// nothing changes.
//
//   dp = 4 on two fast and two slow nodes, pp = 2      classes
//   stage 0:  rank 0 F   rank 1 F   rank 2 S   rank 3 S     {0, 1} {2, 3}   by costs
//                |          |          |          |
//   stage 1:  rank 4 F   rank 5 F   rank 6 F   rank 7 F     {4, 5} {6, 7}   by the ranks they meet
#pragma once
#include <span>
#include <vector>

#include "engine/costs/costs.h"
#include "engine/execution/trace/trace.h"
#include "engine/link/link.h"
#include "engine/link/rendezvous.h"

namespace rehearse::execution {

struct Fold {
  std::vector<std::vector<Id>> class_of = {};        // [role][place]; numbered by first place
  std::vector<std::vector<Id>> representative = {};  // [role][class] -> its first place

  /// The number of places of each class of a role.
  std::vector<double> sizes(Id role) const;
};
/// Finds the classes. All lanes of the program must be in order. `kinds`, by rank: ranks with
/// unlike numbers are not equal; empty: all are alike.
Fold fold(const link::OrderedProgram& linked, const costs::Costs& costs,
          std::span<const Id> kinds = {});

/// The groups of a collective, with classes in place of ranks: [member][class] -> group. Groups
/// that share a class consist of the same classes and become one group. `lowest` stays empty.
link::Rendezvous folded(const link::Rendezvous& whole, std::span<const link::RoleOp> event,
                        const Fold& fold);

/// The undisturbed dry run with one rank for each class. Returns the end of each step's last op, in
/// seconds. The places that `sink` (null: no sink) receives are classes. Throws ProgramError like
/// dry_run_max_plus.
std::vector<double> dry_run_folded(const link::OrderedProgram& linked, const costs::Costs& costs,
                                   const Fold& fold, int steps, TraceSink* sink = nullptr);

}  // namespace rehearse::execution
