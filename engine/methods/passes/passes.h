// Passes: program -> program.
#pragma once
#include <span>

#include "engine/cluster/cluster.h"
#include "engine/costs/collective_prices.h"
#include "engine/program/program.h"

namespace rehearse {

/// Adds the waits across lanes that the refs imply, and no other: read after write, write after
/// read, write after write, within a step and across steps. What lane order or another wait already
/// guarantees is left out.
Program infer_after(Program program);
/// The same with the waits left in that only a path through another role implies: it takes the same
/// time in every executor and is found in less.
Program infer_waits(Program program);

/// Replaces every `automatic` algorithm by the one that is fastest on these devices (by rank;
/// empty: rank i on device i), ties going to the ring. What the user chose stays.
Program choose_collectives(Program program, const Cluster& cluster,
                           std::span<const Id> rank_to_device);
/// The same with prices that are remembered from one program to the next.
Program choose_collectives(Program program, const Cluster& cluster,
                           std::span<const Id> rank_to_device, CollectivePrices& prices);

}  // namespace rehearse
