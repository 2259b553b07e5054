// A collective as NCCL runs it. NCCL cuts the tensor into slices that travel one behind the other,
// over several rings or trees (channels) at a time. So all links work at once, and
//
//   seconds = base + latencies of the hops of one slice + max over links (bytes on it / bandwidth)
//
// in contrast to the rounds of engine/collectives, each of which waits for its slowest transfer.
// Channels of two nodes with three devices and a NIC each (a, b: nodes); every NIC carries a third:
//
//   channel 0   a0 > a1 > a2 > b2 > b0 > b1 >     enters b where it left a: the same rail
//   channel 1   a1 > a2 > a0 > b0 > b1 > b2 >
//   channel 2   a2 > a0 > a1 > b1 > b2 > b0 >
//
// Algorithms: ring; double_tree (all-reduce; chains inside nodes, two binary trees over nodes);
// nvls (all-reduce on a switch that sums); in_network (in_network.h); direct (all-to-all: one group
// of sends and receives, all at the same time; nccl-tests, alltoall.cu). Latencies and efficiencies
// are those of the library's protocols (software/library.h). It takes the protocol of which its own
// estimate is the least. Source: NCCL's tuning model, src/graph/tuning.cc.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/network/library_flows.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// What a tree of switches adds: `bytes` over each of its links at one rate, because a switch
/// passes a sum on as its terms arrive.
struct SumFlow {
  std::vector<Id> links = {};  // of the cluster
  double bytes = 0;
};

struct LibraryCollective {
  program::Algorithm algorithm = program::Algorithm::ring;
  const software::Protocol* protocol = nullptr;  // of the cluster's library; null: it has none
  double latency = 0;                            // seconds before the bytes flow
  double occupancy = 1;  // bytes that a link is busy with per byte of payload
  double seconds = 0;    // when nothing else uses the links
  double estimate = 0;   // seconds, as the library believes
  std::vector<Flow> flows = {};
  std::vector<SumFlow> sums = {};
  std::vector<double> sent = {};  // [member]: payload that it sends into `sums`; empty: no sums
};

/// Whether the cluster's library (or, in_network, its switches) runs collectives of this move and
/// algorithm (`automatic`: any) itself. Otherwise they run in rounds. A library without protocols
/// uses in_network as it is.
bool library_runs(const cluster::Cluster& cluster, program::Algorithm algorithm,
                  program::Move move);

/// The collective of one group: `devices` of its members, `bytes` of the whole tensor, index of the
/// `root`. `automatic` takes the library's choice; so does an algorithm that cannot serve the move
/// or the group. `protocol`: only this one; empty: the library's choice. The cluster must outlive
/// the result. Requires library_runs and at least two members. Throws InputError when the group
/// cannot use the protocol; the message names those that it can use.
LibraryCollective library_collective(const cluster::Cluster& cluster, program::Move move,
                                     program::Algorithm algorithm, double bytes,
                                     std::span<const Id> devices, int root = 0,
                                     const std::string& protocol = {});

/// The algorithm that carries out a collective of `bytes`: the given one, or in place of
/// `automatic` the library's choice, without such a library that of collectives::choose. `devices`:
/// [group][member].
program::Algorithm algorithm_run(const cluster::Cluster& cluster, program::Move move,
                                 program::Algorithm algorithm, std::int64_t bytes,
                                 const std::vector<std::vector<Id>>& devices);

/// All that the library can choose from for the group, in the order of its table.
std::vector<LibraryCollective> library_choices(const cluster::Cluster& cluster, program::Move move,
                                               double bytes, std::span<const Id> devices,
                                               int root = 0);

}  // namespace rehearse::costs
