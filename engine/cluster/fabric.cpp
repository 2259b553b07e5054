#include "engine/cluster/fabric.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/limits.h"

namespace rehearse::cluster {
namespace {

const std::vector<std::string> levels = {"leaf", "spine"};

}  // namespace

Fabric::Fabric(const Config& c, Cluster& cluster) : cluster_(cluster) {
  nodes_per_leaf_ = c.integer("nodes_per_leaf", 0, between(0, most_nodes));
  oversubscription_ = c.number("oversubscription", 1, between(1, limits::factor.most));
  latency_ = c.seconds("latency", Seconds(0), limits::latency);
  if (nodes_per_leaf_ == 0 && c.has("oversubscription"))
    throw c.error("oversubscription",
                  "needs nodes_per_leaf: a fabric of one switch blocks nothing");
  sums_ = c.texts("sums");
  for (const std::string& level : sums_)
    if (std::find(levels.begin(), levels.end(), level) == levels.end())
      throw c.error("sums",
                    fmt::format("\"{}\" is not a level of switches; known: leaf, spine", level));
  sum_bandwidth_ =
      c.bandwidth("sum_bandwidth", BytesPerSecond(0), between(0, limits::bandwidth.most));
  sum_latency_ = c.seconds("sum_latency", Seconds(0), limits::latency);
  for (const char* key : {"sum_bandwidth", "sum_latency"})
    if (sums_.empty() && c.has(key))
      throw c.error(key, "needs sums, the levels of switches that add: [\"leaf\", \"spine\"]");
  if (sum_bandwidth_.value > 0 && sum_bandwidth_.value < limits::bandwidth.least)
    throw c.error("sum_bandwidth",
                  fmt::format("must be 0, which is as much as the cables, or at least {:g} kB/s",
                              limits::bandwidth.least / 1e3));
}

Id Fabric::attach(const std::string& name, Id node, BytesPerSecond bandwidth) {
  const std::string vertex =
      nodes_per_leaf_ == 0 ? name : fmt::format("{}/leaf{}", name, node / nodes_per_leaf_);
  const auto [it, fresh] = leaves_.try_emplace(vertex);
  if (fresh) {
    it->second.vertex = cluster_.add_vertex(vertex);
    order_.push_back(vertex);
  }
  it->second.bandwidth += bandwidth;
  return it->second.vertex;
}

void Fabric::finish() {
  BytesPerSecond together;
  if (order_.size() > 1) {
    const Id spine = cluster_.add_vertex("spine");
    for (const std::string& name : order_) {
      const BytesPerSecond up = leaves_[name].bandwidth / oversubscription_;
      cluster_.connect(leaves_[name].vertex, spine, {}, up, latency_);
      together += up;
    }
    if (sums("spine")) let_sum(spine, together);
  }
  for (const std::string& name : order_)
    if (sums("leaf")) let_sum(leaves_[name].vertex, leaves_[name].bandwidth);
}

bool Fabric::sums(const std::string& level) const {
  return std::find(sums_.begin(), sums_.end(), level) != sums_.end();
}

void Fabric::let_sum(Id vertex, BytesPerSecond cables) {
  cluster_.let_sum(vertex, sum_bandwidth_.value > 0 ? sum_bandwidth_ : cables, sum_latency_);
}

}  // namespace rehearse::cluster
