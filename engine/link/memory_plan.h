// Memory of a rank, planned from the order that the program guarantees (docs/program.md, Memory):
// two values share bytes only if every use of one precedes the first write of the other. Workspace
// is planned like a value that lives as long as its op.
#pragma once
#include "engine/link/clocks.h"
#include "engine/link/hazards.h"
#include "engine/link/link.h"
#include "engine/link/workspace.h"

namespace rehearse::link {

/// Marks on the role's ops which values die there (LinkedOp::dies).
void find_deaths(const program::Role& role, const Hazards& hazards, LinkedRole& linked);

/// What a rank of a role needs. `workspace` may be empty.
RoleMemory plan_memory(const program::Program& program, Id role, const Hazards& hazards,
                       StepClocks& clocks, const Workspace& workspace);

}  // namespace rehearse::link
