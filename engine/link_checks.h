// Parts of the linker that need no order: tables are sound, and what meets on a channel agrees.
#pragma once
#include "engine/link.h"

namespace rehearse {

/// Every index points into its table, views lie inside their storages, collectives have what they
/// read and write.
void check_tables(const Program& program);

/// Fills events, event_of, sequence and peer_op: the n-th op of a step on a channel meets the n-th
/// op of that step in every other member role, and they agree in kind, payload and type.
void match_channels(LinkedProgram& linked);

}  // namespace rehearse
