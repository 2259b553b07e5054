// Under torchrun the agent serves a c10d TCPStore at MASTER_ADDR:MASTER_PORT
// (TORCHELASTIC_USE_AGENT_STORE). Rank 0 then listens on a port of its own and tells it there.
#pragma once
#include <cstdint>

#include "engine/base/units.h"
#include "runtime/control/environment.h"

namespace rehearse::runtime {

void tell_agent_store(const Environment& environment, std::uint16_t port, Seconds timeout);
/// Waits for it. Throws BackendError.
std::uint16_t ask_agent_store(const Environment& environment, Seconds timeout);

}  // namespace rehearse::runtime
