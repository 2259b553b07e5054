// Identical ranks folded: two ranks of a role are alike when their ops cost the same and they meet
// ranks that are alike, so that whatever happens to one happens to the other at the same time (the
// coarsest equitable partition, found by refinement). An undisturbed dry run needs one of each.
#pragma once
#include <vector>

#include "engine/costs/costs.h"
#include "engine/execution/trace.h"
#include "engine/link/link.h"

namespace rehearse::execution {

struct Fold {
  std::vector<std::vector<Id>> class_of = {};        // [role][place]; numbered by first place
  std::vector<std::vector<Id>> representative = {};  // [role][class] -> its first place
};
/// Of a program whose lanes are all in order.
Fold fold(const link::OrderedProgram& linked, const costs::Costs& costs);

/// dry_run of one rank a class, undisturbed: when each step's last op ended. The places of `sink`,
/// if there is one, are classes.
std::vector<double> dry_run_folded(const link::OrderedProgram& linked, const costs::Costs& costs,
                                   const Fold& fold, int steps, TraceSink* sink = nullptr);

}  // namespace rehearse::execution
