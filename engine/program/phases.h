// Phases: a program whose ops work from a step on, or before one (program::When), does other work
// in its first steps than later.
#pragma once
#include "engine/program/program.h"

namespace rehearse::program {

/// The step from which on all steps have the same work, but for ops that work in every N-th step.
int last_phase(const Program& program);

/// The same program with its last phase from step 1 on, where it would begin later: earlier steps
/// are left out. For predictions, which run few steps and are of the last phase.
Program with_early_last_phase(Program program);

}  // namespace rehearse::program
