// Clusters: paths equal those of an exhaustive search; the shapes of the shipped platforms; what
// the hash includes.

#include "engine/cluster/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "engine/cluster/platform/platform.h"
#include "tests/engine/cluster/path_names.h"
#include "tests/message_of.h"

namespace rehearse::cluster {
namespace {

using testing::HasSubstr;

double weight(const Cluster& c, std::span<const Id> path) {
  double sum = 0;
  for (Id link : path) sum += 1 / c.links()[link].bandwidth.value;
  return sum;
}

/// The smallest weight, then the fewest hops, between all pairs of vertices. Reads the graph from
/// the names of links only: "a>b" joins a and b.
std::map<std::pair<std::string, std::string>, std::pair<double, int>> all_pairs(const Cluster& c) {
  std::set<std::string> vertices;
  std::map<std::pair<std::string, std::string>, std::pair<double, int>> d;
  for (const Link& link : c.links()) {
    const auto arrow = link.name.find('>');
    const std::string a = link.name.substr(0, arrow), b = link.name.substr(arrow + 1);
    vertices.insert({a, b});
    const std::pair<double, int> cost{1 / link.bandwidth.value, 1};
    const auto [it, fresh] = d.try_emplace({a, b}, cost);
    if (!fresh) it->second = std::min(it->second, cost);
  }
  const auto better = [](std::pair<double, int> x, std::pair<double, int> y) {
    return x.first < y.first * (1 - 1e-9) ||
           (x.first < y.first * (1 + 1e-9) && x.second < y.second);
  };
  for (const std::string& k : vertices)
    for (const std::string& i : vertices) {
      if (i == k || !d.contains({i, k})) continue;
      for (const std::string& j : vertices) {
        if (i == j || j == k || !d.contains({k, j})) continue;
        const auto ik = d[{i, k}], kj = d[{k, j}];
        const std::pair<double, int> cost{ik.first + kj.first, ik.second + kj.second};
        const auto [it, fresh] = d.try_emplace({i, j}, cost);
        if (!fresh && better(cost, it->second)) it->second = cost;
      }
    }
  return d;
}

class Platforms : public testing::TestWithParam<const char*> {};

TEST_P(Platforms, PathsAreConnectedAndTheCheapestOfAllPaths) {
  const Cluster c = load_cluster(GetParam());
  const auto oracle = all_pairs(c);
  const auto n = static_cast<Id>(c.devices().size());
  for (Id a = 0; a < n; ++a)
    for (Id b = 0; b < n; ++b) {
      const auto path = c.path(a, b);
      if (a == b) {
        EXPECT_TRUE(path.empty());
        continue;
      }
      std::string at = c.devices()[a].name;
      for (Id link : path) {
        const std::string& name = c.links()[link].name;
        ASSERT_EQ(name.substr(0, name.find('>')), at);
        at = name.substr(name.find('>') + 1);
      }
      ASSERT_EQ(at, c.devices()[b].name);
      const auto [w, hops] = oracle.at({c.devices()[a].name, c.devices()[b].name});
      ASSERT_NEAR(weight(c, path), w, 1e-9 * w) << c.devices()[a].name << " to " << at;
      ASSERT_EQ(static_cast<int>(path.size()), hops) << c.devices()[a].name << " to " << at;
    }
}
INSTANTIATE_TEST_SUITE_P(All, Platforms,
                         testing::Values("paper", "paper-homogeneous", "dgx1", "dgx1:2",
                                         "dgx-a100:2", "dgx-h100:3", "this-machine:5"));

TEST(Cluster, ThePapersNodes) {
  const Cluster c = load_cluster("paper");
  ASSERT_EQ(c.devices().size(), 32U);
  EXPECT_EQ(c.nodes(), 12);
  std::map<std::string, int> count;
  for (Id d = 0; d < 32; ++d) ++count[c.kind_of(d).name];
  EXPECT_EQ(count, (std::map<std::string, int>{{"RTX 4090", 24}, {"V100 PCIe 32GB", 8}}));
  EXPECT_EQ(c.devices()[16].name, "node8/gpu0");
  EXPECT_EQ(c.kind_of(18).name, "V100 PCIe 32GB");
  EXPECT_EQ(names_of(c, 0, 1),
            (std::vector<std::string>{"node0/gpu0>node0/host", "node0/host>node0/gpu1"}));
  EXPECT_EQ(names_of(c, 1, 18),
            (std::vector<std::string>{"node0/gpu1>node0/host", "node0/host>node0/nic0",
                                      "node0/nic0>fabric", "fabric>node8/nic0",
                                      "node8/nic0>node8/host", "node8/host>node8/gpu2"}));
  EXPECT_DOUBLE_EQ(c.bandwidth(1, 18).value, 12e9);   // the V100's PCIe 3.0
  EXPECT_DOUBLE_EQ(c.bandwidth(0, 2).value, 12.5e9);  // the NIC
  EXPECT_DOUBLE_EQ(c.bandwidth(0, 1).value, 15.5e9);
  EXPECT_NEAR(c.latency(0, 1).value, 11.6e-6, 1e-12);
  EXPECT_EQ(c.shared_cores(), 0);
  EXPECT_EQ(load_cluster("paper-homogeneous").devices().size(), 32U);
  EXPECT_EQ(load_cluster("paper-homogeneous").nodes(), 8);
}

TEST(Cluster, CubeMeshUsesBricksAndNeverPcieInsideANode) {
  const Cluster c = load_cluster("dgx1");
  EXPECT_DOUBLE_EQ(c.bandwidth(0, 3).value, 47e9);
  EXPECT_DOUBLE_EQ(c.bandwidth(0, 1).value, 23.5e9);
  EXPECT_EQ(c.path(0, 4).size(), 1U);
  // No brick joins 0 and 5. Via 1 and via 4, the links have 23.5 and 47 GB/s: the first by name
  // wins.
  EXPECT_EQ(names_of(c, 0, 5),
            (std::vector<std::string>{"node0/gpu0>node0/gpu1", "node0/gpu1>node0/gpu5"}));
  // 0 to 7: via 3 (47, 23.5 GB/s) or via 4 (47, 47): the wider path wins, although its name is
  // later.
  EXPECT_EQ(names_of(c, 0, 7),
            (std::vector<std::string>{"node0/gpu0>node0/gpu4", "node0/gpu4>node0/gpu7"}));
  for (Id a = 0; a < 8; ++a) {
    double bricks = 0;
    for (Id b = 0; b < 8; ++b) {
      if (a != b && c.path(a, b).size() == 1) bricks += c.bandwidth(a, b).value / 23.5e9;
      for (const std::string& name : names_of(c, a, b)) EXPECT_THAT(name, Not(HasSubstr("pcie")));
    }
    EXPECT_DOUBLE_EQ(bricks, 6) << "GPU " << a;
  }
  const Cluster two = load_cluster("dgx1:2");
  EXPECT_EQ(names_of(two, 2, 15),
            (std::vector<std::string>{"node0/gpu2>node0/pcie1", "node0/pcie1>node0/nic1",
                                      "node0/nic1>fabric", "fabric>node1/nic3",
                                      "node1/nic3>node1/pcie3", "node1/pcie3>node1/gpu7"}));
}

TEST(Cluster, PathsDoNotDependOnTheOrderInWhichAClusterIsPutTogether) {
  // A square has two equal paths. The second cluster lists the corners in reverse order.
  const auto square = [](bool backwards) {
    Cluster c;
    const Id kind = c.add_kind({.name = "k"});
    const Id a = c.vertex_of(c.add_device("a", kind, 0)),
             b = c.vertex_of(c.add_device("b", kind, 1));
    std::vector<std::string> corners{"x", "y"};
    if (backwards) std::swap(corners[0], corners[1]);
    for (const std::string& corner : corners) {
      const Id v = c.add_vertex(corner);
      c.connect(v, b, {}, BytesPerSecond(3e9), Seconds(1e-6));
      c.connect(a, v, {}, BytesPerSecond(7e9), Seconds(1e-6));
    }
    return c;
  };
  const std::vector<std::string> over_x{"a>x", "x>b"};
  EXPECT_EQ(names_of(square(false), 0, 1), over_x);
  EXPECT_EQ(names_of(square(true), 0, 1), over_x);
}

TEST(Cluster, FewerHopsWinWhenWeightsAreEqual) {
  Cluster c;
  const Id kind = c.add_kind({.name = "k"});
  const Id a = c.vertex_of(c.add_device("a", kind, 0)), b = c.vertex_of(c.add_device("b", kind, 0));
  const Id v = c.add_vertex("aa", 0);
  c.connect(a, v, {}, BytesPerSecond(2e9), Seconds(0));
  c.connect(v, b, {}, BytesPerSecond(2e9), Seconds(0));
  c.connect(a, b, "direct", BytesPerSecond(1e9), Seconds(0));
  EXPECT_EQ(names_of(c, 0, 1), (std::vector<std::string>{"direct"}));
  EXPECT_EQ(names_of(c, 1, 0), (std::vector<std::string>{"direct.back"}));
}

TEST(Cluster, NodesThatTouchDirectlyAreOneGraph) {
  Cluster c;  // a chain over three nodes, without a switch
  const Id kind = c.add_kind({.name = "k"});
  for (Id i = 0; i < 3; ++i) c.add_device("n" + std::to_string(i), kind, i);
  c.connect(c.vertex_of(0), c.vertex_of(1), {}, BytesPerSecond(1e9), Seconds(1e-6));
  c.connect(c.vertex_of(2), c.vertex_of(1), {}, BytesPerSecond(2e9), Seconds(2e-6));
  EXPECT_EQ(names_of(c, 0, 2), (std::vector<std::string>{"n0>n1", "n1>n2"}));
  EXPECT_DOUBLE_EQ(c.bandwidth(0, 2).value, 1e9);
  EXPECT_NEAR(c.latency(2, 0).value, 3e-6, 1e-15);
}

TEST(Cluster, WhatChangesIsAskedAnew) {
  Cluster c;
  const Id kind = c.add_kind({.name = "k"});
  const Id a = c.add_device("a", kind, 0), b = c.add_device("b", kind, 1);
  EXPECT_EQ(test::message_of([&] { c.path(a, b); }), "cluster \"\": there is no path from a to b");
  c.connect(c.vertex_of(a), c.vertex_of(b), "slow", BytesPerSecond(1e9), Seconds(0));
  EXPECT_EQ(names_of(c, a, b), (std::vector<std::string>{"slow"}));
  const Cluster before = c;
  c.connect(c.vertex_of(a), c.vertex_of(b), "fast", BytesPerSecond(5e9), Seconds(0));
  EXPECT_EQ(names_of(c, a, b), (std::vector<std::string>{"fast"}));
  EXPECT_EQ(names_of(before, a, b), (std::vector<std::string>{"slow"}));
  EXPECT_NE(before.hash(), c.hash());
}

TEST(Cluster, HashSeesEveryNumberAndNotTheName) {
  Cluster a = load_cluster("dgx1:2"), b = load_cluster("dgx1:2");
  EXPECT_EQ(a.hash(), b.hash());
  a.path(0, 9);
  a.rename("another");
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_NE(a.hash(), load_cluster("dgx1:3").hash());
  b.share_cores(3);
  EXPECT_NE(a.hash(), b.hash());
}

TEST(Cluster, APodOf16384DevicesAnswersWithoutAllPairs) {
  const Cluster c = load_cluster("dgx-h100:2048");
  const auto n = static_cast<Id>(c.devices().size());
  ASSERT_EQ(n, 16384U);
  EXPECT_EQ(c.nodes(), 2048);
  // The paths that meshes need: ring neighbours near and far. With one graph of all 51,000 vertices
  // each of the 16,384 sources would take tens of milliseconds.
  for (Id a = 0; a < n; ++a) {
    EXPECT_EQ(c.path(a, a / 8 * 8 + (a + 1) % 8).size(), 2U);
    EXPECT_EQ(c.path(a, (a + 8) % n).size(), 6U);
    EXPECT_EQ(c.path(a, (a + 1024) % n).size(), 6U);
    EXPECT_DOUBLE_EQ(c.bandwidth(a, (a + 8008) % n).value, 48e9);
  }
  // Traffic stays on its rail: from GPU 3 to GPU 3 it leaves and arrives through NIC 3.
  EXPECT_EQ(names_of(c, 3, 8195)[1], "node0/pcie3>node0/nic3");
  EXPECT_EQ(names_of(c, 3, 8195)[3], "fabric>node1024/nic3");
}

}  // namespace
}  // namespace rehearse::cluster
