// The paths between a cluster's devices, found when they are asked for and kept. Private to
// Cluster.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/cluster/routes/tables.h"

namespace rehearse::cluster {

/// Its public functions may be called by several threads at a time, `changed` by one alone.
class Paths {
 public:
  /// `data` must outlive this object.
  explicit Paths(const Tables& data) : data_(data) {}
  /// Forgets all paths. Whoever changes `data` calls it.
  void changed();

  /// As Cluster::path, Cluster::ways and Cluster::sum_tree. a and b are two devices.
  std::span<const Id> cheapest(Id a, Id b);
  std::span<const Path> ways(Id a, Id b);
  SumTree sum_tree(std::span<const Id> devices);
  /// Calls `f` with each link of the cheapest path, which is not kept.
  template <class F>
  void each_link(Id a, Id b, F f) {
    if (a == b) return;
    const std::scoped_lock lock(mutex_);
    const auto it = paths_.find(key(a, b));
    std::vector<Id> found;
    if (it == paths_.end()) find(a, b, found);
    for (const Id link : it == paths_.end() ? found : it->second) f(data_.links[link]);
  }

 private:
  static std::uint64_t key(Id a, Id b) { return std::uint64_t{a} << 32 | b; }

  // Whoever calls these holds the mutex.
  Routes& routes();
  void find(Id a, Id b, std::vector<Id>& path);
  const std::vector<Id>& path(Id a, Id b);
  void find_ways(Id a, Id b, std::vector<Path>& found);
  bool forest();

  void add_flows(Id a, Id b, std::vector<Id>& path) const;
  Path way(std::vector<Id> links) const;
  bool crosses_a_device(const std::vector<Id>& links) const;
  bool joined(Id a, Id b) const;
  void add_library(Id a, Id b, std::vector<Path>& ways) const;

  const Tables& data_;
  std::mutex mutex_ = {};
  std::unique_ptr<Routes> routes_ = {};                          // by 1/bandwidth
  std::map<double, std::unique_ptr<Routes>> routes_above_ = {};  // by latency, over links with
                                                                 // more than this bandwidth
  std::optional<bool> is_forest_ = {};  // whether the graph is a forest; none: not known yet
  std::unordered_map<std::uint64_t, std::vector<Id>> paths_ = {};
  std::unordered_map<std::uint64_t, std::vector<Path>> ways_ = {};
};

}  // namespace rehearse::cluster
