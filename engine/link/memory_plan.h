// Plans the memory of a rank from the order that the program guarantees, never from timing
// (docs/program.md, Memory). Two values share bytes only if every use of one value ends before the
// first write of the other. Workspace is planned like a value that lives as long as its op.
#pragma once
#include "engine/link/clocks.h"
#include "engine/link/hazards.h"
#include "engine/link/link.h"
#include "engine/link/workspace.h"

namespace rehearse::link {

/// Fills LinkedOp::dies: the values that an op may be the last to use.
void find_deaths(const program::Role& role, const Hazards& hazards, LinkedRole& linked);

/// Bytes that a rank of a role needs. An empty `workspace` counts none.
RoleMemory plan_memory(const program::Program& program, Id role, const Hazards& hazards,
                       StepClocks& clocks, const Workspace& workspace);

}  // namespace rehearse::link
