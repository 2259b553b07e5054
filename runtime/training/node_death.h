// The death of a whole node, as a fault on purpose.
#pragma once
#include "engine/job/job.h"
#include "runtime/checkpoints/node_store.h"
#include "runtime/control/control.h"
#include "runtime/execution/fault_injector.h"

namespace rehearse::runtime {

/// A rank with its node of the cluster.
RankPlace place_of(const job::Job& job, Id rank);
/// Ends the other processes of this rank's node, and removes what the node keeps.
void lose_node(const job::Job& job, const NodeStore& store, const Control& control);

}  // namespace rehearse::runtime
