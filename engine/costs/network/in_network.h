// Collectives that switches between nodes add (program::Algorithm::in_network; SHARP, Graham et
// al., COM-HPC 2016; NCCL's CollNet). Inside each node, the k members reduce the tensor among
// themselves, so that each has the sum of a k-th part. The members with the same part, one on each
// node, send it up a tree of switches (cluster/sum_tree.h), and the sum comes down to them. Then
// the members of a node gather the parts. Two nodes with two members each, a tensor of M bytes:
//
//   node0   gpu0 <-- M/2 each way --> gpu1        node1   gpu2 <-- M/2 each way --> gpu3
//             |                         |                   |                         |
//            M/2   up and down         M/2                 M/2                       M/2
//             +--- tree of part 0 ------|-------------------+                         |
//                                       +--- tree of part 1 --------------------------+
//
// Switches add a stream as it arrives, and the members do the same with NCCL's slices, so all links
// work at once and
//
//   seconds = latencies of one slice's way + max over links (bytes on the link / its bandwidth)
//
// A NIC carries M/k out and M/k in; a ring over n members on as many NICs sends 2 (n - 1)/n M/k.
// A broadcast goes only down from the root's node, a reduce only up to it.
#pragma once
#include <span>
#include <string>

#include "engine/costs/network/library_collective.h"

namespace rehearse::costs {

/// Why switches cannot add for this group of devices, and what would let them; empty: they can.
std::string why_not_in_network(const cluster::Cluster& cluster, std::span<const Id> devices);

/// The flows, sums and latencies of one group, with `times` of the library's protocol (null: the
/// library has none; then paths have their own latencies). At least two members. `estimate` is not
/// set. A group on one node has only the flows inside it. Throws InputError when a switch between
/// the members does not add.
LibraryCollective in_network(const cluster::Cluster& cluster, program::Move move, double bytes,
                             std::span<const Id> devices, int root,
                             const software::ProtocolTimes* times);

}  // namespace rehearse::costs
