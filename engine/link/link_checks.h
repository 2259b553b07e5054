// The part of the linker that needs no clocks: ops that meet on a channel must agree.
#pragma once
#include "engine/link/link.h"

namespace rehearse::link {

/// Fills events, event_of, sequence and peer_op. The n-th op of a step on a channel meets the n-th
/// op of that step in every other member role. Throws ProgramError unless ops that meet agree in
/// kind, elements and dtype, layouts fit the collective, and each mailbox has puts and takes.
void match_channels(OrderedProgram& linked);

}  // namespace rehearse::link
