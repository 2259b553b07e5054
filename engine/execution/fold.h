// Folding: two ranks of a role are alike when their ops cost the same and they meet ranks that are
// alike. Then everything happens to both at the same time, and an undisturbed dry run computes one
// of them. The classes are the coarsest equitable partition, found by refinement: start with one
// class a role, part it by costs, then by the classes that its members meet, until nothing changes.
//
//   dp = 4 on two fast and two slow nodes, pp = 2      classes
//   stage 0:  rank 0 F   rank 1 F   rank 2 S   rank 3 S     {0, 1} {2, 3}   by costs
//                |          |          |          |
//   stage 1:  rank 4 F   rank 5 F   rank 6 F   rank 7 F     {4, 5} {6, 7}   by whom they meet
#pragma once
#include <span>
#include <vector>

#include "engine/costs/costs.h"
#include "engine/execution/trace.h"
#include "engine/link/link.h"
#include "engine/link/rendezvous.h"

namespace rehearse::execution {

struct Fold {
  std::vector<std::vector<Id>> class_of = {};        // [role][place]; numbered by first place
  std::vector<std::vector<Id>> representative = {};  // [role][class] -> its first place
};
/// Of a program whose lanes are all in order.
Fold fold(const link::OrderedProgram& linked, const costs::Costs& costs);

/// The groups of a collective among classes: [member][class] -> group. Groups that share a class
/// are alike, and then all their classes are the same, so they become one. `lowest` stays empty.
link::Rendezvous folded(const link::Rendezvous& whole, std::span<const link::RoleOp> event,
                        const Fold& fold);

/// The undisturbed dry run with one rank for each class. Returns when the last op of each step
/// ended. The places that `sink` sees (null: no sink) are classes. Throws ProgramError as
/// dry_run_max_plus.
std::vector<double> dry_run_folded(const link::OrderedProgram& linked, const costs::Costs& costs,
                                   const Fold& fold, int steps, TraceSink* sink = nullptr);

}  // namespace rehearse::execution
