#include "engine/execution/dry_run/dry_run.h"

namespace rehearse::execution {

bool needs_events(const link::OrderedProgram& linked) {
  if (linked.mailboxes) return true;
  for (const program::Role& role : linked.program.roles) {
    if (role.free_running || role.round.steps > 0) return true;
    for (const program::Lane& lane : role.lanes)
      if (lane.order == program::Order::arrival) return true;
  }
  return false;
}

DryRun dry_run(const link::OrderedProgram& linked, const costs::Costs& costs,
               const cluster::Disturber& disturber, int steps, TraceSink& sink,
               FaultReplay* faults) {
  return faults != nullptr || needs_events(linked)
             ? dry_run_events(linked, costs, disturber, steps, sink, faults)
             : dry_run_max_plus(linked, costs, disturber, steps, sink);
}

}  // namespace rehearse::execution
