// Rendezvous under torchrun: its agent serves a c10d TCPStore at MASTER_ADDR:MASTER_PORT
// (TORCHELASTIC_USE_AGENT_STORE). Rank 0 listens on a port of its own and publishes in the store
// where that is and, unless every rank has it already, the run's secret. Whoever reaches the store
// can read it: torchrun asks nobody who they are.
#pragma once
#include <cstdint>
#include <string>

#include "engine/base/units.h"
#include "runtime/control/launch/environment.h"
#include "runtime/control/net/secret.h"

namespace rehearse::runtime {

/// Where rank 0 listens. `secret`: zeros if it is not told here.
struct MeetingPlace {
  std::string address = {};
  std::uint16_t port = 0;
  Secret secret = {};
};

/// Rank 0: publishes the place. Throws BackendError when the store does not answer.
void tell_agent_store(const Environment& environment, const MeetingPlace& place, Seconds timeout);
/// Other ranks: waits for the place. Throws BackendError when the store does not answer, or the
/// place does not come or is malformed.
MeetingPlace ask_agent_store(const Environment& environment, Seconds timeout);

}  // namespace rehearse::runtime
