// The one rule between a run's heartbeat and its timeout, for the reader of jobs and for the
// control plane.
#pragma once
#include "engine/base/units.h"

namespace rehearse {

/// So many heartbeats fit into the timeout at least: with fewer, a beat or two that a busy machine
/// delays would make a healthy peer look dead.
constexpr int least_heartbeats = 4;

constexpr Seconds longest_heartbeat(Seconds timeout) { return timeout / least_heartbeats; }

}  // namespace rehearse
