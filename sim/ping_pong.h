// Plays the Topology Profiler's ping-pongs (engine/costs/ping_pong.h) on the modelled cluster: its
// links, shared where pairs of one round share them, slowed and jittered as a job's [disturb] says.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/costs/ping_pong.h"
#include "engine/costs/profile.h"

namespace rehearse::sim {

struct PingPongRun {
  std::vector<costs::PairTime> pairs = {};  // by (from, to)
  double seconds = 0;                       // simulated, of all rounds
};

/// `rounds`: of pairing_rounds; each begins when the last one has ended. `slow`: by link (see
/// link_slowdowns); empty: none. `disturber` is of as many ranks as there are devices, rank i on
/// device i. SimGrid allows one simulation in the life of a process. Throws InputError where two
/// devices have no path.
PingPongRun play_ping_pong(const cluster::Cluster& cluster,
                           std::span<const costs::PairRound> rounds,
                           const cluster::Disturber& disturber, std::span<const double> slow,
                           const costs::PingPong& settings = {});

}  // namespace rehearse::sim
