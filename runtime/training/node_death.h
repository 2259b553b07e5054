// What faults on purpose need of the run around a rank: the death of a whole node, and what is said
// of events that did not strike.
#pragma once
#include "engine/job/job.h"
#include "runtime/checkpoints/files/node_store.h"
#include "runtime/control/control.h"
#include "runtime/executor/fault_injector.h"

namespace rehearse::runtime {

/// A rank with its node of the cluster.
RankPlace place_of(const job::Job& job, Id rank);
/// Ends the other processes of this rank's node, and removes what the node keeps.
void lose_node(const job::Job& job, const NodeStore& store, const Control& control);

/// Rank 0 says on standard error which events of the job's trace have not struck by the end of the
/// run, after `steps` steps, and why. Every rank calls it.
void tell_not_struck(const FaultInjector& faults, const job::Job& job, std::int64_t steps,
                     Control& control);

}  // namespace rehearse::runtime
