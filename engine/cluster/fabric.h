// The switches between nodes. Cables to "fabric" end in one non-blocking switch or, with
// nodes_per_leaf, in leaf switches below a spine:
//
//              spine
//             /     \         bandwidth of a leaf's cables to its nodes / oversubscription
//        leaf0       leaf1
//        /   \       /   \    one cable per node and link of the template
//    node0 node1   node2 node3
//
// Each rail has its own switch or leaves; two or more switches of any kind are joined by the spine.
// Switches of the levels in `sums` add what passes (sum_tree.h).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/config.h"
#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

inline constexpr std::int64_t most_nodes = 1 << 17;  // a million GPUs, 8 per node

class Fabric {
 public:
  /// Reads the section [fabric] of a platform file. Throws InputError.
  Fabric(const Config& c, Cluster& cluster);
  /// The vertex of the switch that a node's cable ends in. `name` is "fabric" or, with several
  /// rails, "fabric/RAIL".
  Id attach(const std::string& name, Id node, BytesPerSecond bandwidth);
  /// To be called when all nodes are attached.
  void finish();

 private:
  struct Leaf {
    Id vertex = none;
    BytesPerSecond bandwidth = {};
  };
  bool sums(const std::string& level) const;
  void let_sum(Id vertex, BytesPerSecond cables);

  Cluster& cluster_;
  std::int64_t nodes_per_leaf_ = 0;
  double oversubscription_ = 1;
  Seconds latency_ = {}, sum_latency_ = {};
  std::vector<std::string> sums_ = {};  // levels
  BytesPerSecond sum_bandwidth_ = {};   // 0: as much as the switch's cables
  std::map<std::string, Leaf> leaves_ = {};
  std::vector<std::string> order_ = {};
};

}  // namespace rehearse::cluster
