// The part of the linker that needs no order: what meets on a channel agrees.
#pragma once
#include "engine/link/link.h"

namespace rehearse::link {

/// Fills events, event_of, sequence and peer_op: the n-th op of a step on a channel meets the n-th
/// op of that step in every other member role, and they agree in kind, payload and type.
void match_channels(LinkedProgram& linked);

}  // namespace rehearse::link
