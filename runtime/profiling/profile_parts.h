// The parts of a profile: what a model costs, what kernels cost, what communication costs, all
// together and from rank to rank.
// Internal to the profiler.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/ping_pong.h"
#include "engine/costs/profile.h"
#include "engine/model/model.h"
#include "runtime/communication/network.h"
#include "runtime/control/control.h"
#include "runtime/profiling/profiler.h"

namespace rehearse::runtime {

double seconds_now();
/// Of one number of each rank; every rank calls it with the same key.
double mean_over_ranks(Control& control, const std::string& key, double mine);
double max_over_ranks(Control& control, const std::string& key, double mine);

/// Times of one model at one number of samples and one tp, every rank running at once.
void profile_model(const model::ModelSpec& model, int samples, int tp,
                   const ProfileSettings& settings, Control& control, costs::Profile& profile);
void profile_kernels(Control& control, costs::Profile& profile);
/// Latency and bandwidth of every pair of ranks, which stand on the devices of `cluster`.
void profile_pairs(const cluster::Cluster& cluster, Control& control, Network& network,
                   costs::Profile& profile);
void profile_network(const ProfileSettings& settings, Control& control, Network& network,
                     costs::Profile& profile);

}  // namespace rehearse::runtime
