// Simulates the ping-pongs of the Topology Profiler (engine/costs/network/ping_pong.h) on a
// modelled cluster. Pairs of one round share links. Slow links and jitter are those of a job's
// [disturb].
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/costs/network/ping_pong.h"
#include "engine/costs/profile.h"

namespace rehearse::sim {

struct PingPongRun {
  std::vector<costs::PairTime> pairs = {};  // sorted by (from, to)
  double seconds = 0;                       // simulated time of all rounds
};

/// `rounds`: from pairing_rounds; a round begins when the round before it has ended. `slow`: a
/// factor on each link's time (see link_slowdowns); empty: all 1. `disturber` is made for as many
/// ranks as there are devices; rank i stands on device i. SimGrid allows one simulation in the life
/// of a process. Throws InputError when two devices have no path.
PingPongRun play_ping_pong(const cluster::Cluster& cluster,
                           std::span<const costs::PairRound> rounds,
                           const cluster::Disturber& disturber, std::span<const double> slow,
                           const costs::PingPong& settings = {});

}  // namespace rehearse::sim
