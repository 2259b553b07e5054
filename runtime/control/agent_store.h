// Rendezvous under torchrun: its agent serves a c10d TCPStore at MASTER_ADDR:MASTER_PORT
// (TORCHELASTIC_USE_AGENT_STORE). Rank 0 listens on a port of its own and publishes that port in
// the store, where the other ranks read it.
#pragma once
#include <cstdint>

#include "engine/base/units.h"
#include "runtime/control/environment.h"

namespace rehearse::runtime {

/// Rank 0: publishes its port. Throws BackendError when the store does not answer.
void tell_agent_store(const Environment& environment, std::uint16_t port, Seconds timeout);
/// Other ranks: waits for rank 0's port. Throws BackendError when the store does not answer or the
/// port does not come.
std::uint16_t ask_agent_store(const Environment& environment, Seconds timeout);

}  // namespace rehearse::runtime
