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
// Switches of the levels in `sums` add what passes (sum_tree.h). With nodes_per_group there is such
// a fabric for each group of nodes, and a cable between the uppermost switches of each two groups:
// a dragonfly (Kim, Dally, Scott and Abts, ISCA 2008), or data centres with lines between them.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/cluster/cluster.h"

namespace rehearse::cluster {

inline constexpr std::int64_t most_nodes = 1 << 17;  // a million GPUs, 8 per node

/// The keys of the section [fabric] of a platform file (docs/platforms.md), or those that a job
/// states in their place. None: not stated.
struct FabricKeys {
  std::optional<std::int64_t> nodes_per_leaf = {}, nodes_per_group = {};
  std::optional<double> oversubscription = {};
  std::optional<Seconds> latency = {}, group_latency = {}, sum_latency = {};
  std::optional<BytesPerSecond> group_bandwidth = {}, sum_bandwidth = {};
  std::optional<std::vector<std::string>> sums = {};  // levels
  std::vector<std::string> of_job = {};               // the names of those that a job states
  bool operator==(const FabricKeys&) const = default;
};
/// Checks each key, but not whether they fit together. Throws InputError.
FabricKeys read_fabric(const Config& c);
/// `over`, which a job states, where it has a key; else `base`.
FabricKeys with(FabricKeys base, const FabricKeys& over);

class Fabric {
 public:
  /// Throws an error of the section `c` when keys do not fit together, or Refused with the key's
  /// name if it is the job's.
  Fabric(FabricKeys keys, const Config& c, Cluster& cluster);
  /// The vertex of the switch that a node's cable ends in. `name` is "fabric" or, with several
  /// rails, "fabric/RAIL". Throws InputError when there are too many groups.
  Id attach(const std::string& name, Id node, BytesPerSecond bandwidth);
  /// To be called when all nodes are attached. Throws InputError when keys are stated, and no node
  /// has a cable to the fabric.
  void finish();

 private:
  struct Leaf {
    Id vertex = none;
    BytesPerSecond bandwidth = {};
  };
  /// The switches of a group, or of all nodes.
  struct Group {
    std::map<std::string, Leaf> leaves = {};
    std::vector<std::string> order = {};
  };
  /// Joins the switches of a group by a spine. Returns its uppermost switch; none: it has none.
  Id join(std::size_t number);
  bool sums(const std::string& level) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;
  void let_sum(Id vertex, BytesPerSecond cables);

  FabricKeys keys_;
  Config config_;
  Cluster& cluster_;
  std::int64_t nodes_per_leaf_ = 0, nodes_per_group_ = 0;  // 0: no leaves, no groups
  std::vector<Group> groups_ = {};
};

}  // namespace rehearse::cluster
