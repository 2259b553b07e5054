// What lowering makes of a plan, before passes complete it.
#pragma once
#include "engine/program/program.h"

namespace rehearse::methods {

/// The ops of every role, in the order in which a host issues them. Waits between lanes are
/// missing: infer_waits (passes/passes.h) adds them.
struct LoweredProgram {
  program::Program program = {};
};

}  // namespace rehearse::methods
