// Passes: program -> program.
#pragma once
#include <span>

#include "engine/cluster/cluster.h"
#include "engine/costs/collective_prices.h"
#include "engine/methods/lowering/lowered_program.h"
#include "engine/program/program.h"

namespace rehearse::methods {

/// Adds the waits between lanes that the refs imply, and no other: read after write, write after
/// read, write after write, within a step and across steps. A wait that lane order or another wait
/// already guarantees is left out.
program::Program infer_waits(LoweredProgram lowered);
/// The same, but keeps waits that only a path through another role implies. Every executor takes
/// the same time for the result, and it is found faster.
program::Program infer_all_waits(LoweredProgram lowered);

/// Replaces every `automatic` algorithm by the one that is fastest on these devices (by rank;
/// empty: rank i on device i), ties going to the ring. What the user chose stays.
program::Program choose_collectives(program::Program program, const cluster::Cluster& cluster,
                                    std::span<const Id> rank_to_device);
/// The same with prices that are remembered from one program to the next.
program::Program choose_collectives(program::Program program, const cluster::Cluster& cluster,
                                    std::span<const Id> rank_to_device,
                                    costs::CollectivePrices& prices);

}  // namespace rehearse::methods
