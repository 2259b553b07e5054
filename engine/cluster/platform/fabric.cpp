#include "engine/cluster/platform/fabric.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/numbers/limits.h"
#include "engine/base/refusal.h"

namespace rehearse::cluster {
namespace {

const std::vector<std::string> levels = {"leaf", "spine"};
constexpr std::size_t most_groups = 512;  // each two have a cable

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

FabricKeys read_fabric(const Config& c) {
  FabricKeys keys{
      .nodes_per_leaf = c.maybe_integer("nodes_per_leaf", between(0, most_nodes)),
      .nodes_per_group = c.maybe_integer("nodes_per_group", between(0, most_nodes)),
      .oversubscription = c.maybe_number("oversubscription", between(1, limits::factor.most)),
      .latency = c.maybe_seconds("latency", limits::latency),
      .group_latency = c.maybe_seconds("group_latency", limits::latency),
      .sum_latency = c.maybe_seconds("sum_latency", limits::latency),
      .group_bandwidth = c.maybe_bandwidth("group_bandwidth", limits::bandwidth),
      .sum_bandwidth = c.maybe_bandwidth("sum_bandwidth", between(0, limits::bandwidth.most))};
  const std::vector<std::string> sums = c.texts("sums");
  for (const std::string& level : sums)
    if (!contains(levels, level))
      throw c.error("sums",
                    fmt::format("\"{}\" is not a level of switches; known: leaf, spine", level));
  if (c.has("sums")) keys.sums = sums;
  if (const auto rate = keys.sum_bandwidth;
      rate && rate->value > 0 && rate->value < limits::bandwidth.least)
    throw c.error("sum_bandwidth",
                  fmt::format("must be 0, which is as much as the cables, or at least {:g} kB/s",
                              limits::bandwidth.least / 1e3));
  return keys;
}

FabricKeys with(FabricKeys base, const FabricKeys& over) {
  const auto put = [&](auto member) {
    if (over.*member) base.*member = over.*member;
  };
  put(&FabricKeys::nodes_per_leaf);
  put(&FabricKeys::nodes_per_group);
  put(&FabricKeys::oversubscription);
  put(&FabricKeys::latency);
  put(&FabricKeys::group_latency);
  put(&FabricKeys::sum_latency);
  put(&FabricKeys::group_bandwidth);
  put(&FabricKeys::sum_bandwidth);
  put(&FabricKeys::sums);
  base.of_job = over.of_job;
  return base;
}

Fabric::Fabric(FabricKeys keys, const Config& c, Cluster& cluster)
    : keys_(std::move(keys)),
      config_(c),
      cluster_(cluster),
      nodes_per_leaf_(keys_.nodes_per_leaf.value_or(0)),
      nodes_per_group_(keys_.nodes_per_group.value_or(0)) {
  const auto need = [&](bool given, bool stated, const char* key, const char* what) {
    if (stated && !given) refuse(key, what);
  };
  need(nodes_per_leaf_ > 0, keys_.oversubscription.has_value(), "oversubscription",
       "needs nodes_per_leaf: a fabric of one switch blocks nothing");
  const char* const groups = "needs nodes_per_group, the number of nodes in each group";
  need(nodes_per_group_ > 0, keys_.group_bandwidth.has_value(), "group_bandwidth", groups);
  need(nodes_per_group_ > 0, keys_.group_latency.has_value(), "group_latency", groups);
  need(keys_.group_bandwidth.has_value(), nodes_per_group_ > 0, "nodes_per_group",
       "needs group_bandwidth, of the cable between each two groups");
  if (nodes_per_leaf_ > 0 && nodes_per_group_ % nodes_per_leaf_ != 0)
    refuse("nodes_per_group",
           fmt::format("{} is no multiple of nodes_per_leaf, {}: a leaf lies in one group",
                       nodes_per_group_, nodes_per_leaf_));
  const bool adds = keys_.sums && !keys_.sums->empty();
  need(nodes_per_group_ == 0, adds, "sums",
       "switches of several groups do not add together; leave out sums or nodes_per_group");
  const char* const switches = "needs sums, the levels of switches that add: [\"leaf\", \"spine\"]";
  need(adds, keys_.sum_bandwidth.has_value(), "sum_bandwidth", switches);
  need(adds, keys_.sum_latency.has_value(), "sum_latency", switches);
}

void Fabric::refuse(const std::string& key, const std::string& why) const {
  if (contains(keys_.of_job, key)) throw Refused({key, why});
  throw config_.error(key, why);
}

Id Fabric::attach(const std::string& name, Id node, BytesPerSecond bandwidth) {
  const auto number = static_cast<std::size_t>(nodes_per_group_ == 0 ? 0 : node / nodes_per_group_);
  if (number >= most_groups)
    refuse("nodes_per_group", fmt::format("{}: node {} would be in group {}, counted from 0; there "
                                          "are at most {} groups",
                                          nodes_per_group_, node, number, most_groups));
  groups_.resize(std::max(groups_.size(), number + 1));
  std::string vertex = nodes_per_group_ == 0 ? name : fmt::format("group{}/{}", number, name);
  if (nodes_per_leaf_ > 0) vertex += fmt::format("/leaf{}", node / nodes_per_leaf_);
  Group& group = groups_[number];
  const auto [it, fresh] = group.leaves.try_emplace(vertex);
  if (fresh) {
    it->second.vertex = cluster_.add_vertex(vertex);
    group.order.push_back(vertex);
  }
  it->second.bandwidth += bandwidth;
  return it->second.vertex;
}

Id Fabric::join(std::size_t number) {
  Group& group = groups_[number];
  if (group.order.empty()) return none;
  if (group.order.size() == 1) return group.leaves[group.order[0]].vertex;
  const Id spine =
      cluster_.add_vertex(nodes_per_group_ == 0 ? "spine" : fmt::format("group{}/spine", number));
  BytesPerSecond together;
  for (const std::string& name : group.order) {
    const BytesPerSecond up = group.leaves[name].bandwidth / keys_.oversubscription.value_or(1);
    cluster_.connect(group.leaves[name].vertex, spine, {}, up, keys_.latency.value_or(Seconds(0)));
    together += up;
  }
  if (sums("spine")) let_sum(spine, together);
  return spine;
}

void Fabric::finish() {
  if (groups_.empty() && keys_ != FabricKeys())
    throw InputError(fmt::format(
        "cluster \"{}\": no node has a cable to the fabric; leave out its keys", cluster_.name()));
  const bool spines = std::ranges::any_of(groups_, [](auto& g) { return g.order.size() > 1; });
  if (keys_.latency && nodes_per_leaf_ == 0 && !spines)
    refuse("latency", "needs nodes_per_leaf: a fabric of one switch has no cable to a spine");
  std::vector<Id> tops;
  for (std::size_t number = 0; number < groups_.size(); ++number)
    if (const Id top = join(number); top != none) tops.push_back(top);
  for (std::size_t a = 0; a < tops.size(); ++a)
    for (std::size_t b = a + 1; b < tops.size(); ++b)
      cluster_.connect(tops[a], tops[b], {}, *keys_.group_bandwidth,
                       keys_.group_latency.value_or(Seconds(0)));
  for (Group& group : groups_)
    for (const std::string& name : group.order)
      if (sums("leaf")) let_sum(group.leaves[name].vertex, group.leaves[name].bandwidth);
}

bool Fabric::sums(const std::string& level) const {
  return keys_.sums && contains(*keys_.sums, level);
}

void Fabric::let_sum(Id vertex, BytesPerSecond cables) {
  const BytesPerSecond rate = keys_.sum_bandwidth.value_or(BytesPerSecond(0));
  cluster_.let_sum(vertex, rate.value > 0 ? rate : cables, keys_.sum_latency.value_or(Seconds(0)));
}

}  // namespace rehearse::cluster
