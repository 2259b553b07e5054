// Which ops belong to the phases of a step in which events strike.
#pragma once
#include <optional>

#include "engine/faults/event.h"
#include "engine/program/program.h"

namespace rehearse::faults {

/// The phase that an op belongs to; nothing: an op of no phase. Every op also belongs to `begin`.
std::optional<Phase> phase_of(const program::Work& work);

}  // namespace rehearse::faults
