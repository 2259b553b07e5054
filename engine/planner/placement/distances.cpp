#include "engine/planner/placement/distances.h"

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <map>

namespace rehearse::planner {
namespace {

using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property,
                                    boost::property<boost::edge_weight_t, double>>;

/// Replaces the distances by shortest paths in the complete graph with these distances as edges.
void through_pairs(std::vector<double>& seconds, std::size_t n) {
  Graph graph(n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      if (i != j) boost::add_edge(i, j, seconds[i * n + j], graph);
  std::vector<double> from(n);
  for (std::size_t i = 0; i < n; ++i) {
    boost::dijkstra_shortest_paths(graph, i,
                                   boost::distance_map(boost::make_iterator_property_map(
                                       from.begin(), get(boost::vertex_index, graph))));
    std::copy(from.begin(), from.end(), seconds.begin() + static_cast<std::ptrdiff_t>(i * n));
  }
}

}  // namespace

double Distances::look_up(std::size_t from, std::size_t to) const {
  double sum = 0;
  for (Id link : cluster_.path(devices_[from], devices_[to]))
    sum += 1 / cluster_.links()[link].bandwidth.value;
  return sum;
}

double Distances::look_up_slowest(std::size_t from, std::size_t to) const {
  return from == to ? 0 : 1 / cluster_.bandwidth(devices_[from], devices_[to]).value;
}

Distances::Distances(const cluster::Cluster& cluster, std::span<const Id> devices,
                     const costs::Profile* profile)
    : cluster_(cluster), devices_(devices.begin(), devices.end()) {
  const std::size_t n = devices_.size();
  if (n > table_limit) return;
  std::vector<double> seconds(n * n, 0.0);
  slowest_.assign(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      seconds[i * n + j] = look_up(i, j), slowest_[i * n + j] = look_up_slowest(i, j);
  if (profile != nullptr && !profile->pairs.empty()) {
    std::map<Id, std::size_t> place;
    for (std::size_t i = 0; i < n; ++i) place[devices_[i]] = i;
    for (const costs::PairTime& pair : profile->pairs) {
      const auto a = place.find(pair.from), b = place.find(pair.to);
      if (a != place.end() && b != place.end() && a != b && pair.bandwidth > 0)
        seconds[a->second * n + b->second] = slowest_[a->second * n + b->second] =
            1 / pair.bandwidth;
    }
    through_pairs(seconds, n);
  }
  seconds_ = std::move(seconds);
}

double eq1(std::span<const double> bytes, std::span<const Id> place, const Distances& d) {
  double sum = 0;
  for (std::size_t l = 0; l + 1 < place.size(); ++l) sum += bytes[l] * d(place[l], place[l + 1]);
  return sum;
}

}  // namespace rehearse::planner
