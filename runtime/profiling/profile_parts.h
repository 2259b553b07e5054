// The parts of a profile: times of model segments, of kernels, of collectives and transfers, and of
// every pair of ranks. Every function here runs on all ranks at once. Internal to the profiler.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/network/ping_pong.h"
#include "engine/costs/profile.h"
#include "engine/model/model.h"
#include "runtime/communication/network.h"
#include "runtime/control/control.h"
#include "runtime/profiling/profiler.h"
#include "runtime/profiling/timed_stream.h"

namespace rehearse::runtime {

double seconds_now();
/// Mean and maximum of one number from each rank. Every rank calls them with the same key.
double mean_over_ranks(Control& control, const std::string& key, double mine);
double max_over_ranks(Control& control, const std::string& key, double mine);

/// Times segments and updates of one model at one number of samples and one tp. All ranks run at
/// the same time, but do not communicate: each computes the part of tensor rank 0.
void profile_model(const model::ModelSpec& model, int samples, int tp,
                   const ProfileSettings& settings, TimedStream& stream, Control& control,
                   costs::Profile& profile);
void profile_kernels(const ProfileSettings& settings, TimedStream& stream, Control& control,
                     costs::Profile& profile);

/// One that connects all ranks. The device's, if it has communicators of its own.
std::unique_ptr<Communicator> connect_all(const std::string& channel, Device& device,
                                          Control& control, Network& network);
/// Its ranks meet, on the device if they are connected there. `scratch`: a number of the device.
void meet(Communicator& comm, Device& device, float* scratch);
/// Measures latency and bandwidth of every pair of ranks. Rank i is on device i of `cluster`.
void profile_pairs(const cluster::Cluster& cluster, TimedStream& stream, Control& control,
                   Network& network, costs::Profile& profile);
/// Times collectives of all ranks, and transfers between neighbours, by size.
void profile_network(const ProfileSettings& settings, TimedStream& stream, Control& control,
                     Network& network, costs::Profile& profile);

}  // namespace rehearse::runtime
