// Which passes run while a rank communicates. A collective runs beside the pass before it, in
// program order, if it does not wait for that pass; otherwise beside the next one, if that does not
// wait for the collective:
//
//   compute    | pass 1 | pass 2 |            prefetched gathers: beside the pass before
//   gather     | for 2  | for 3  |
//
//   compute    | pass 1 | pass 2 |            sums of gradients: beside the pass after
//   dp         |        | of 1   |
//
// Where a pass waits for a collective that waits for the pass before (the sums of tensor
// parallelism), nothing runs beside it. A collective of the first steps only (When::until) does not
// count.
#pragma once
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/program/program.h"

namespace rehearse::costs {

struct Beside {
  Id pass = none;                    // op
  std::vector<Id> collectives = {};  // ops, at least one
  friend bool operator==(const Beside&, const Beside&) = default;
};

/// In the order of the passes.
std::vector<Beside> passes_beside(const program::Role& role);

/// Part of the channels that fill the cables in a node which a collective of the role on this
/// channel needs. A library takes a multiprocessor for each of its channels, and between nodes only
/// as many as fill the network of a group's members on a node.
double channels_needed(const program::Program& program, Id role, Id channel,
                       const cluster::Cluster& cluster, std::span<const Id> rank_to_device);

}  // namespace rehearse::costs
