// The path of a transfer equals the result of an exhaustive search over all paths.
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "tests/engine/cluster/path_names.h"

namespace rehearse::cluster {
namespace {

/// Seconds of the fastest path from a to b across switches. Reads the graph from names of links.
double fastest_of_all(const Cluster& c, const std::string& a, const std::string& b, double bytes,
                      std::set<std::string> seen, double latency = 0, double width = 1e300) {
  if (a == b) return latency + bytes / width;
  seen.insert(a);
  double best = 1e300;
  for (const Link& link : c.links()) {
    const auto arrow = link.name.find('>');
    const std::string to = link.name.substr(arrow + 1);
    if (link.name.substr(0, arrow) != a || seen.contains(to)) continue;
    if (to != b && to.starts_with("gpu")) continue;  // devices do not forward
    best = std::min(best, fastest_of_all(c, to, b, bytes, seen, latency + link.latency.value,
                                         std::min(width, link.bandwidth.value)));
  }
  return best;
}

// A wide cable with a high latency, a narrow cable with a low latency, and paths around both.
TEST(Cluster, ATransferTakesThePathThatIsFastestForItsSize) {
  for (int seed = 0; seed < 20; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto draw = [&](std::initializer_list<double> values) {
      return values.begin()[random() % values.size()];
    };
    Cluster c;
    const Id kind = c.add_kind(load_device("A100 80GB"));
    for (int i = 0; i < 3; ++i) c.add_device("gpu" + std::to_string(i), kind, 0);
    const std::vector<Id> vertices = {c.vertex_of(0), c.vertex_of(1), c.vertex_of(2),
                                      c.add_vertex("s", 0), c.add_vertex("t", 0)};
    for (std::size_t i = 0; i < vertices.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        c.connect(vertices[i], vertices[j], "", BytesPerSecond(draw({1e9, 2e9, 5e9, 9e9, 25e9})),
                  Seconds(draw({0, 1e-6, 3e-6, 2e-5})));
    for (Id a = 0; a < 3; ++a)
      for (Id b = 0; b < 3; ++b) {
        if (a == b) continue;
        for (const double bytes : {0.0, 1e2, 1e4, 1e5, 1e6, 1e9}) {
          Seconds latency;
          double width = 1e300;
          for (const Id link : c.path(a, b, bytes)) {
            latency += c.links()[link].latency;
            width = std::min(width, c.links()[link].bandwidth.value);
          }
          const double best =
              fastest_of_all(c, c.devices()[a].name, c.devices()[b].name, bytes, {});
          EXPECT_NEAR(latency.value + bytes / width, best, 1e-12 + 1e-9 * best)
              << "seed " << seed << ", " << a << " to " << b << ", " << bytes << " bytes";
        }
      }
  }
}

/// Two nodes of four devices behind a host with two NICs each. Each node has a leaf, and two spines
/// join the leaves.
TEST(Cluster, TheDevicesOfANodeTakeEqualPathsInTurn) {
  Cluster c;
  const Id kind = c.add_kind(load_device("A100 80GB"));
  const Id spines[] = {c.add_vertex("spine0"), c.add_vertex("spine1")};
  const BytesPerSecond rate(1e10);
  for (const Id n : {0, 1}) {
    const std::string node = n == 0 ? "a" : "b";
    const Id leaf = c.add_vertex(node + "/leaf"), host = c.add_vertex(node + "/host", n);
    for (const Id spine : spines) c.connect(leaf, spine, "", rate, Seconds(1e-6));
    for (int i = 0; i < 4; ++i)
      c.connect(c.vertex_of(c.add_device(node + "/gpu" + std::to_string(i), kind, n)), host, "",
                rate, Seconds(1e-6));
    for (const char* nic : {"/nic1", "/nic0"}) {  // the order of names counts, not this one
      const Id vertex = c.add_vertex(node + nic, n);
      c.connect(host, vertex, "", rate, Seconds(1e-6));
      c.connect(vertex, leaf, "", rate, Seconds(1e-6));
    }
  }
  const auto way = [&](Id a, Id b, int source, int spine, int destination) {
    const std::string from = a < 4 ? "a" : "b", to = a < 4 ? "b" : "a";
    const std::string s = "spine" + std::to_string(spine), out = "/nic" + std::to_string(source),
                      in = "/nic" + std::to_string(destination);
    const std::vector<std::string> wanted = {
        from + "/gpu" + std::to_string(a % 4) + ">" + from + "/host",
        from + "/host>" + from + out,
        from + out + ">" + from + "/leaf",
        from + "/leaf>" + s,
        s + ">" + to + "/leaf",
        to + "/leaf>" + to + in,
        to + in + ">" + to + "/host",
        to + "/host>" + to + "/gpu" + std::to_string(b % 4)};
    EXPECT_EQ(names_of(c, a, b), wanted) << a << " to " << b;
    ASSERT_EQ(c.ways(a, b).size(), 1U);
  };
  way(0, 4, 0, 0, 0);
  way(1, 5, 1, 1, 1);
  way(2, 6, 0, 0, 0);
  way(3, 4, 1, 1, 0);
  way(4, 0, 0, 1, 0);  // the nodes, too, take the spines in turn
  way(5, 1, 1, 0, 1);
}

}  // namespace
}  // namespace rehearse::cluster
