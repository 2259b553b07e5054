// A tree of switches that add what devices send, as InfiniBand switches with SHARP do (Graham et
// al., "Scalable Hierarchical Aggregation Protocol", COM-HPC 2016). Each device sends its tensor
// once, up to its leaf switch. A switch with several branches adds them in its arithmetic (a vertex
// NAME/sums) and passes one tensor on. The root sends the sum down again:
//
//             spine -- spine/sums         up: node0 > leaf0 > leaf0/sums, leaf0 > spine >
//             spine/sums
//            /     \                    down: spine > leaf0 > node0
//   .../sums - leaf0   leaf1 - .../sums
//        /  \         /   \             each link carries the tensor once in each direction
//    node0  node1  node2  node3
//
// The root is the middle switch of the longest path from the first device to another one. The ways
// down are the cheapest paths from the root, which form a tree.
#pragma once
#include <string>
#include <vector>

#include "engine/base/id.h"

namespace rehearse::cluster {

struct SumTree {
  /// [device]: directed links from the device up to the root, with the link to the arithmetic of
  /// each switch on the way that adds; and from the root down to the device.
  std::vector<std::vector<Id>> up = {}, down = {};
  /// Why there is no tree: "switch fabric/leaf0 does not add"; empty: there is one.
  std::string cannot = {};
};

}  // namespace rehearse::cluster
