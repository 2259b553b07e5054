// The dry run computes when every op starts and ends, without running it. A program whose lanes are
// all in order is a max-plus linear system (Baccelli et al., "Synchronization and Linearity",
// 1992):
//
//   start(op) = max over its waits w of end(w)       a rendezvous: also max over its members
//   end(op)   = start(op) + cost(op)
//
// Each macro-iteration is one pass over linked.order, with an inner loop over the ranks of a role.
// Programs with mailboxes, lanes by arrival or free-running roles need an event queue. Where both
// engines apply, they give the same times.
#pragma once
#include <cstdint>

#include "engine/cluster/disturbance.h"
#include "engine/costs/costs.h"
#include "engine/execution/dry_run/fault_replay.h"
#include "engine/execution/trace/trace.h"
#include "engine/link/link.h"

namespace rehearse::execution {

struct DryRun {
  double seconds = 0;          // end of the last op that was run
  std::int64_t instances = 0;  // number of (rank, op, step) executed
};

/// Runs `steps` steps, or fewer when `sink` may stop the run; free-running roles run until all
/// others have finished. Deterministic: the same arguments give the same calls of `sink` in the
/// same order. Throws ProgramError, which names the waiting ops, when the program cannot make
/// progress. In a linked program only mailboxes can cause this.
/// With `faults`, ranks die, freeze and become slow, and the run may stop before its last step.
DryRun dry_run(const link::OrderedProgram& linked, const costs::Costs& costs,
               const cluster::Disturber& disturber, int steps, TraceSink& sink,
               FaultReplay* faults = nullptr);

/// The two engines behind dry_run, for tests. dry_run_max_plus throws ProgramError when
/// needs_events.
DryRun dry_run_max_plus(const link::OrderedProgram& linked, const costs::Costs& costs,
                        const cluster::Disturber& disturber, int steps, TraceSink& sink);
DryRun dry_run_events(const link::OrderedProgram& linked, const costs::Costs& costs,
                      const cluster::Disturber& disturber, int steps, TraceSink& sink,
                      FaultReplay* faults = nullptr);
/// Whether the program has mailboxes, lanes by arrival or free-running roles.
bool needs_events(const link::OrderedProgram& linked);

}  // namespace rehearse::execution
