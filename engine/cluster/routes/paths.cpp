#include "engine/cluster/routes/paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/errors.h"
#include "engine/cluster/routes/sum_trees.h"

namespace rehearse::cluster {
namespace {

/// Drops each path that another one beats or equals in latency and in bandwidth. Of equal paths the
/// first stays.
void keep_best(std::vector<Path>& ways) {
  std::stable_sort(ways.begin(), ways.end(), [](const Path& x, const Path& y) {
    return std::pair(x.latency, y.bandwidth) < std::pair(y.latency, x.bandwidth);
  });
  std::vector<Path> best;
  for (Path& way : ways)
    if (best.empty() || way.bandwidth > best.back().bandwidth) best.push_back(std::move(way));
  ways = std::move(best);
}

}  // namespace

void Paths::changed() {
  routes_.reset();
  routes_above_.clear();
  is_forest_.reset();
  paths_.clear();
  ways_.clear();
}

std::span<const Id> Paths::cheapest(Id a, Id b) {
  const std::scoped_lock lock(mutex_);
  return path(a, b);
}

std::span<const Path> Paths::ways(Id a, Id b) {
  const std::scoped_lock lock(mutex_);
  const auto [it, fresh] = ways_.try_emplace(key(a, b));
  if (fresh) try {
      find_ways(a, b, it->second);
    } catch (...) {
      ways_.erase(it);
      throw;
    }
  return it->second;
}

SumTree Paths::sum_tree(std::span<const Id> devices) {
  const std::scoped_lock lock(mutex_);
  const SumTrees trees(data_.vertices, data_.ends, data_.arithmetic);
  std::vector<std::vector<Id>> ways;
  std::vector<Id> ends;
  for (const Id device : devices) {
    if (device != devices[0]) {
      ways.push_back(path(devices[0], device));
      std::erase_if(ways.back(), [&](Id link) { return link >= 2 * data_.ends.size(); });  // flows
    }
    ends.push_back(data_.vertex_of[device]);
  }
  const Id root = trees.middle(ways);
  if (root != none) return trees.below(root, ends, routes());
  return {.cannot = fmt::format("no switch joins {} and {}", data_.devices[devices[0]].name,
                                data_.devices[devices[1]].name)};
}

Routes& Paths::routes() {
  if (!routes_)
    routes_ = std::make_unique<Routes>(data_.vertices, data_.ends, data_.links, RouteMetric{});
  return *routes_;
}

/// Finds the cheapest path from a to b, or the torus's.
void Paths::find(Id a, Id b, std::vector<Id>& path) {
  if (!data_.torus.sizes.empty()) return data_.torus.path(a, b, path);
  if (!routes().find(data_.vertex_of[a], data_.vertex_of[b], path))
    throw InputError(fmt::format("cluster \"{}\": there is no path from {} to {}", data_.name,
                                 data_.devices[a].name, data_.devices[b].name));
  add_flows(a, b, path);
}

/// The cheapest path from a to b, kept.
const std::vector<Id>& Paths::path(Id a, Id b) {
  const auto [it, fresh] = paths_.try_emplace(key(a, b));
  if (fresh) try {
      find(a, b, it->second);
      it->second.shrink_to_fit();
    } catch (...) {
      paths_.erase(it);
      throw;
    }
  return it->second;
}

/// Finds the path of the least latency over all links, then over the links that are wider than the
/// narrowest one of that path, and so on; all of them across switches and hosts only. Adds the
/// cheapest path, which may cross a device (NCCL's NVB) if no cable joins a and b.
void Paths::find_ways(Id a, Id b, std::vector<Path>& found) {
  const Path only = way(path(a, b));
  if (!data_.torus.sizes.empty() || forest()) {
    found.push_back(only);
    return add_library(a, b, found);
  }
  std::vector<Id> links;
  for (double above = 0;;) {
    auto& wider = routes_above_[above];
    if (!wider)
      wider = std::make_unique<Routes>(data_.vertices, data_.ends, data_.links,
                                       RouteMetric{.latency = true, .above = above});
    if (!wider->find(data_.vertex_of[a], data_.vertex_of[b], links)) break;
    if (crosses_a_device(links)) break;
    above = way(links).bandwidth.value;
    add_flows(a, b, links);
    found.push_back(way(links));
  }
  if (!crosses_a_device(only.links) || !joined(a, b)) found.insert(found.begin(), only);
  keep_best(found);
  add_library(a, b, found);
}

bool Paths::forest() {
  if (!is_forest_) is_forest_ = is_forest(data_.vertices.size(), data_.ends);
  return *is_forest_;
}

/// Appends the flows that a path from a to b is part of.
void Paths::add_flows(Id a, Id b, std::vector<Id>& path) const {
  for (std::size_t i = 0, n = data_.flows.empty() ? 0 : path.size(); i < n; ++i)
    if (const auto it = data_.flows.find(path[i] / 2); it != data_.flows.end()) {
      const Id home = data_.vertices[data_.ends[path[i] / 2].first].node;
      const Id from = data_.devices[a].node, other = from == home ? data_.devices[b].node : from;
      path.push_back(it->second + 2 * other + path[i] % 2);
    }
}

Path Paths::way(std::vector<Id> links) const {
  Path out{.links = std::move(links),
           .bandwidth = BytesPerSecond(std::numeric_limits<double>::infinity())};
  for (const Id link : out.links) {
    out.latency += data_.links[link].latency;
    out.bandwidth = std::min(out.bandwidth, data_.links[link].bandwidth);
  }
  return out;
}

bool Paths::crosses_a_device(const std::vector<Id>& links) const {
  return std::any_of(links.begin() + 1, links.end(), [this](Id link) {
    if (link >= 2 * data_.ends.size()) return false;  // a flow
    const auto& [from, to] = data_.ends[link / 2];
    return data_.vertices[link % 2 == 0 ? from : to].device;
  });
}

/// Whether a cable joins two devices.
bool Paths::joined(Id a, Id b) const {
  const Id from = data_.vertex_of[a], to = data_.vertex_of[b];
  return std::any_of(data_.ends.begin(), data_.ends.end(), [&](const auto& end) {
    return end == std::pair(from, to) || end == std::pair(to, from);
  });
}

void Paths::add_library(Id a, Id b, std::vector<Path>& ways) const {
  const bool across = data_.devices[a].node != data_.devices[b].node;
  for (Path& way : ways) {
    way.wire = way.latency;
    way.latency += across ? data_.library.across : data_.library.in_node;
  }
}

}  // namespace rehearse::cluster
