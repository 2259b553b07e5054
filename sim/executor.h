// The simulator: runs a linked program on a model of a cluster, with contention. The semantics are
// those of the dry run (lanes, `after` with lag, shifts, rendezvous, mailboxes). The difference is
// that transfers share links, and that work shares cores where ranks share a host; SimGrid computes
// both. This file knows no training method: it uses only an op's work, cost and partners.
//
// There are two fidelities. `fluid` simulates a collective as one flow for each pair of members and
// phase. `chunk` simulates every transfer of every round of its schedule (see exchange.h).
//
// What cannot contend bypasses SimGrid: local work on a device of its own, and exchanges whose
// links nothing else can use at the same time (see group_exchanges.h). When every op of a program
// has a fixed order, an op's times are computed as soon as its inputs are known, ahead of SimGrid's
// clock: the max-plus recurrence of the dry run. Programs with mailboxes, arrival lanes or
// free-running roles follow SimGrid's clock, because there the order of ops depends on times.
#pragma once
#include <cstdint>
#include <span>

#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/costs/costs.h"
#include "engine/costs/profile.h"
#include "engine/execution/dry_run/fault_replay.h"
#include "engine/execution/trace/trace.h"
#include "engine/link/link.h"

namespace rehearse::sim {

enum class Fidelity : std::uint8_t { fluid, chunk };

struct SimOptions {
  Fidelity fidelity = Fidelity::fluid;
  bool bypass = true;  // false: SimGrid simulates everything; for tests of the bypass
  /// The profile that `costs` were made from; null: none. With a profile, transfers are stretched
  /// to the measured times, and communication takes core time where ranks share cores.
  const costs::Profile* profile = nullptr;
  /// A factor on each link's time, by link, as given to `costs` (see link_slowdowns); empty: all 1.
  std::span<const double> slow = {};
  /// What breaks; null: nothing. The run may then stop before its last step.
  execution::FaultReplay* faults = nullptr;
};

struct Simulated {
  double seconds = 0;          // simulated time at which the last recorded op ended
  std::int64_t instances = 0;  // executed instances (rank, op, step)
  std::int64_t transfers = 0;  // point-to-point transfers that did not bypass the network
  std::int64_t flows = 0;      // the transfers with bytes and links
  std::int64_t bypassed = 0;   // exchanges and puts whose duration was known beforehand
};

/// Runs `steps` steps, or fewer when `sink` may stop the run; a free-running role runs until all
/// other roles have finished theirs. The result is deterministic: the same arguments give the same
/// calls of `sink` in the same order.
///
/// SimGrid allows one simulation in the life of a process: a second call throws BackendError (see
/// run_seeds.h). Throws InputError when two devices that must talk have no path. Throws
/// BackendError that names the ops when the simulation stops before all ops have ended. Throws
/// ProgramError when a put replies before a message came.
Simulated simulate(const link::OrderedProgram& linked, const costs::Costs& costs,
                   const cluster::Cluster& cluster, const cluster::Disturber& disturber, int steps,
                   execution::TraceSink& sink, const SimOptions& options = {});

}  // namespace rehearse::sim
