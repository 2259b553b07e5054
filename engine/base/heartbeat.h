// The longest heartbeat interval that a timeout allows. The job reader and the control plane share
// this rule.
#pragma once
#include "engine/base/units.h"

namespace rehearse {

/// At least this many heartbeats must fit into the timeout. With fewer, one or two beats that a
/// busy machine delays would make a healthy peer look dead.
constexpr int least_heartbeats = 4;

constexpr Seconds longest_heartbeat(Seconds timeout) { return timeout / least_heartbeats; }

}  // namespace rehearse
