// What a checkpoint costs: the bytes of a program's state, and the rates at which a cluster copies,
// writes and reads them.
#pragma once
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/goodput/setting.h"
#include "engine/job/survival.h"
#include "engine/link/link.h"
#include "engine/plan/plan.h"

namespace rehearse::goodput {

/// Bytes of the state of a run (program::Life::state).
struct StateBytes {
  double whole = 0;                  // every tensor once: what a checkpoint holds
  std::vector<double> of_rank = {};  // what is in the memory of each rank's device
  /// Elements of 4 and of 2 bytes in `whole` that an incremental checkpoint may quantise: weights,
  /// their masters and first moments.
  double floats = 0, halves = 0;
};
/// Equal copies of parameters on data-parallel replicas count once, and so do moments and master
/// copies unless they are sharded. Of parameter servers only what the servers have counts. A tied
/// embedding counts on each of its stages.
StateBytes state_bytes(const link::OrderedProgram& linked, const plan::Plan& plan);

/// Where the ranks of a run are.
struct Layout {
  std::vector<Id> node_of_slot = {};  // nodes of the cluster, ascending
  std::vector<Id> slot_of_rank = {};
  std::vector<Id> replica_of_rank = {};  // none: a parameter server
};
Layout layout_of(const cluster::Cluster& cluster, const plan::Plan& plan);

/// Seconds of each part of a checkpoint of this kind (docs/faults-semantics.md has the formulas).
/// Throws InputError that begins with the key when the cluster does not state the disk that it
/// needs, or when the memory of a host cannot hold what the kind keeps there. `staging`: that of
/// the software (software::Software::staging); 0: as fast as the link to the host.
CheckpointPrices checkpoint_prices(const job::Checkpoint& checkpoint, const StateBytes& state,
                                   const Layout& layout, const cluster::Cluster& cluster,
                                   BytesPerSecond staging = {});

/// Seconds to copy the state of one replica from another, node by node over the network.
Ticks copy_time(const StateBytes& state, const Layout& layout, const cluster::Cluster& cluster);

}  // namespace rehearse::goodput
