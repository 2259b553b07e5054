// The simulator: runs a linked program on a model of a cluster, with contention. The semantics are
// the dry run's (lanes, `after` with lag, shifts, rendezvous, mailboxes); what differs is that
// transfers share links, and work shares cores where ranks share a host, by SimGrid. Nothing here
// knows a training method: an op's work, cost and partners are all there is.
//
// Two fidelities: `fluid` moves a collective as one flow for each pair and phase, `chunk` as every
// transfer of every round of its schedule. What cannot contend bypasses SimGrid: local work on
// devices of their own, and exchanges whose links nothing else can use at the same time. Where all
// of a program's ops are in order, their times are computed ahead of SimGrid's clock as soon as
// they are known (a max-plus recurrence); programs with mailboxes, arrival lanes or free-running
// roles follow the clock.
#pragma once
#include <cstdint>
#include <span>

#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/costs/costs.h"
#include "engine/costs/profile.h"
#include "engine/execution/trace.h"
#include "engine/link/link.h"

namespace rehearse::sim {

enum class Fidelity : std::uint8_t { fluid, chunk };

struct SimOptions {
  Fidelity fidelity = Fidelity::fluid;
  bool bypass = true;  // false: everything through SimGrid, to check that it changes nothing
  /// The profile that `costs` were made from, if any: transfers are stretched to what was measured,
  /// and communication takes core time where cores are shared.
  const costs::Profile* profile = nullptr;
  /// By link, as given to `costs` (see link_slowdowns); empty: none.
  std::span<const double> slow = {};
};

struct Simulated {
  double seconds = 0;          // when the last op ended
  std::int64_t instances = 0;  // (rank, op, step) executed
  std::int64_t transfers = 0;  // point-to-point transfers that were not bypassed
  std::int64_t flows = 0;  // ... of them simulated by SimGrid (neither empty nor within a device)
  std::int64_t bypassed = 0;  // exchanges and puts whose duration was known beforehand
};

/// Run `steps` steps (free-running roles: until all others have served theirs). Deterministic: the
/// same arguments give the same calls of `sink` in the same order. SimGrid allows one simulation in
/// the life of a process: a second call throws BackendError (see run_seeds.h). Throws InputError
/// when devices that must talk have no path, BackendError naming the ops when something that began
/// never ended.
Simulated simulate(const link::LinkedProgram& linked, const costs::Costs& costs,
                   const cluster::Cluster& cluster, const cluster::Disturber& disturber, int steps,
                   execution::TraceSink& sink, const SimOptions& options = {});

}  // namespace rehearse::sim
