// The result of lowering a plan, before the passes (passes/passes.h) complete it.
#pragma once
#include "engine/program/program.h"

namespace rehearse::methods {

/// The ops of every role, in the order in which a host issues them. It has no waits between
/// lanes yet: infer_waits adds them.
struct LoweredProgram {
  program::Program program = {};
};

}  // namespace rehearse::methods
