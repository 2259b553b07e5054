// The dry run: the program's semantics as arithmetic. In-order programs are a max-plus linear
// system (Baccelli et al., "Synchronization and Linearity", 1992): an op starts at the maximum of
// the ends it waits for and ends its cost later; a rendezvous starts at the maximum over those who
// meet. One pass over linked.order per iteration with an inner loop over the ranks of a role, so
// 16,384 ranks cost no memory per op. Programs with mailboxes, arrival lanes or free-running roles
// need an event queue, which gives the same times where both apply.
#pragma once
#include <cstdint>

#include "engine/cluster/disturbance.h"
#include "engine/costs/costs.h"
#include "engine/execution/trace.h"
#include "engine/link/link.h"

namespace rehearse::execution {

struct DryRun {
  double seconds = 0;          // when the last op ended
  std::int64_t instances = 0;  // (rank, op, step) executed
};

/// Run `steps` steps (free-running roles: until all others have served theirs). Deterministic: the
/// same arguments give the same calls of `sink` in the same order. Throws ProgramError when the
/// program cannot make progress (which the linker rules out but for mailboxes) and names the ops
/// that wait.
DryRun dry_run(const link::OrderedProgram& linked, const costs::Costs& costs,
               const cluster::Disturber& disturber, int steps, TraceSink& sink);

/// The two engines behind dry_run, for tests: max-plus refuses (ProgramError) what only events can
/// do.
DryRun dry_run_max_plus(const link::OrderedProgram& linked, const costs::Costs& costs,
                        const cluster::Disturber& disturber, int steps, TraceSink& sink);
DryRun dry_run_events(const link::OrderedProgram& linked, const costs::Costs& costs,
                      const cluster::Disturber& disturber, int steps, TraceSink& sink);
bool needs_events(const link::OrderedProgram& linked);

}  // namespace rehearse::execution
