// Compiler passes: each takes a program and returns it with waits or algorithms filled in.
#pragma once
#include <span>

#include "engine/cluster/cluster.h"
#include "engine/costs/network/collective_prices.h"
#include "engine/methods/lowering/lowered_program.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace rehearse::methods {

/// Adds ops that save the state of all roles behind training (save_states.cpp).
LoweredProgram save_states(LoweredProgram lowered, const plan::Checkpoints& how);

/// Adds exactly the waits between lanes that the ops' refs imply: read after write, write after
/// read and write after write, within a step and across steps. A wait that lane order or other
/// waits already imply is left out.
program::Program infer_waits(LoweredProgram lowered);
/// The same, but keeps a wait that is implied only by a path through another role. This is faster
/// to compute, and the program takes the same time on every executor.
program::Program infer_all_waits(LoweredProgram lowered);

/// Replaces every `automatic` algorithm by the fastest one on the given devices; the ring wins
/// ties. Algorithms that the user chose stay. `rank_to_device`: by rank; empty: rank i is on device
/// i.
program::Program choose_collectives(program::Program program, const cluster::Cluster& cluster,
                                    std::span<const Id> rank_to_device);
/// The same with `prices` as a cache of collective costs across programs.
program::Program choose_collectives(program::Program program, const cluster::Cluster& cluster,
                                    std::span<const Id> rank_to_device,
                                    costs::CollectivePrices& prices);

}  // namespace rehearse::methods
