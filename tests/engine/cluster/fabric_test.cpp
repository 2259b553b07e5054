// Networks between nodes: what can cross the middle of each (docs/platforms.md), by the largest
// flow through the graph; groups of nodes; keys of a fabric that a job replaces.
#include "engine/cluster/platform/fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "engine/cluster/platform/platform.h"
#include "engine/job/job.h"
#include "tests/engine/cluster/path_names.h"
#include "tests/message_of.h"

namespace rehearse::cluster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
struct Pipe {
  std::int64_t capacity = 0, left = 0;  // bytes per second
  Traits::edge_descriptor back = {};
};
using Pipes =
    boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, Pipe>;

void connect(Pipes& pipes, std::size_t a, std::size_t b, std::int64_t capacity) {
  const auto there = boost::add_edge(a, b, pipes).first, back = boost::add_edge(b, a, pipes).first;
  pipes[there] = {.capacity = capacity, .back = back};
  pipes[back].back = there;
}

/// Bytes per second that the devices of the first half of all nodes can send to the others
/// together.
double across_the_middle(const Cluster& c) {
  std::map<std::string, std::size_t> vertex_of;
  const auto vertex = [&](const std::string& name) {
    return vertex_of.try_emplace(name, vertex_of.size()).first->second;
  };
  constexpr std::int64_t any = std::int64_t{1} << 60;
  Pipes pipes;
  const std::size_t from = vertex("from"), to = vertex("to");
  for (const Link& link : c.links()) {
    const auto arrow = link.name.find('>');
    const std::string a = link.name.substr(0, arrow), b = link.name.substr(arrow + 1);
    if (c.torus().empty() ||
        (a != "fabric" && b != "fabric"))  // no transfer of a torus takes these
      connect(pipes, vertex(a), vertex(b), static_cast<std::int64_t>(link.bandwidth.value));
  }
  for (const Device& device : c.devices()) {
    const bool first = 2 * device.node < static_cast<Id>(c.nodes());
    connect(pipes, first ? from : vertex(device.name), first ? vertex(device.name) : to, any);
  }
  return static_cast<double>(
      boost::push_relabel_max_flow(pipes, from, to,
                                   boost::capacity_map(boost::get(&Pipe::capacity, pipes))
                                       .residual_capacity_map(boost::get(&Pipe::left, pipes))
                                       .reverse_edge_map(boost::get(&Pipe::back, pipes))
                                       .vertex_index_map(boost::get(boost::vertex_index, pipes))));
}

const std::string topologies = "experiments/topologies/";
constexpr double nic = 25e9;  // 200 Gb/s, of a node of most of these files

TEST(Topologies, WhatCrossesTheMiddle) {
  const auto crosses = [](const std::string& name) {
    return across_the_middle(load_cluster(name));
  };
  EXPECT_DOUBLE_EQ(crosses("dgx-a100:8"), 4 * 8 * 24e9);  // PCIe to each NIC
  EXPECT_DOUBLE_EQ(crosses(topologies + "fat-tree.toml:32"), 16 * nic / 2);
  EXPECT_DOUBLE_EQ(crosses(topologies + "rails.toml:8"), 4 * 4 * 24e9);  // PCIe again
  EXPECT_DOUBLE_EQ(crosses(topologies + "dragonfly.toml:32"), 4 * 4 * 12.5e9);
  EXPECT_DOUBLE_EQ(crosses(topologies + "two-sites.toml"), 1.25e9);
  EXPECT_DOUBLE_EQ(crosses(topologies + "nvl72.toml:2"), 72 * 48e9);
  EXPECT_DOUBLE_EQ(crosses("tpu-v4:4x4x8"), 2 * 4 * 4 * 50e9);
}

TEST(Topologies, GroupsAreJoinedByOneCableEach) {
  const Cluster c =
      load_cluster(topologies + "dragonfly.toml:12");  // three groups, four GPUs a node
  EXPECT_EQ(names_of(c, 0, 12),
            (std::vector<std::string>{"node0/gpu0>node0/nic", "node0/nic>group0/fabric",
                                      "group0/fabric>node3/nic", "node3/nic>node3/gpu0"}));
  EXPECT_EQ(names_of(c, 0, 44),
            (std::vector<std::string>{"node0/gpu0>node0/nic", "node0/nic>group0/fabric",
                                      "group0/fabric>group2/fabric", "group2/fabric>node11/nic",
                                      "node11/nic>node11/gpu0"}));
  EXPECT_EQ(c.ways(0, 44).size(), 1U) << "none goes through a third group";
  EXPECT_NEAR(c.latency(0, 44).value - c.latency(0, 12).value, 1e-6, 1e-15);
}

TEST(Topologies, GroupsMayHaveLeaves) {
  const FabricKeys keys{.nodes_per_leaf = 2,
                        .oversubscription = 4,
                        .latency = Seconds(3e-7),
                        .group_bandwidth = BytesPerSecond(1e9)};
  const Cluster c = load_cluster(topologies + "two-sites.toml", {.fabric = keys});
  EXPECT_EQ(names_of(c, 0, 28), (std::vector<std::string>{
                                    "node0/gpu0>node0/nic", "node0/nic>group0/fabric/leaf0",
                                    "group0/fabric/leaf0>group0/spine", "group0/spine>group1/spine",
                                    "group1/spine>group1/fabric/leaf3",
                                    "group1/fabric/leaf3>node7/nic", "node7/nic>node7/gpu0"}));
  EXPECT_DOUBLE_EQ(c.bandwidth(0, 28).value, 1e9);
  EXPECT_DOUBLE_EQ(c.bandwidth(0, 8).value, 2 * nic / 4);
}

TEST(Topologies, WrongKeysAreRefused) {
  const auto refused = [](const std::string& name, const FabricKeys& keys) {
    return test::message_of([&] { load_cluster(name, {.fabric = keys}); });
  };
  const std::string sites = topologies + "two-sites.toml";
  EXPECT_THAT(refused(sites, {.nodes_per_leaf = 3}),
              AllOf(HasSubstr("two-sites.toml:6: key \"fabric.nodes_per_group\""),
                    HasSubstr("4 is no multiple of nodes_per_leaf, 3")));
  EXPECT_THAT(refused("dgx-a100:2", {.nodes_per_group = 1}),
              HasSubstr("key \"fabric.nodes_per_group\": needs group_bandwidth"));
  EXPECT_THAT(refused("dgx-a100:2", {.group_latency = Seconds(1)}),
              HasSubstr("key \"fabric.group_latency\": needs nodes_per_group"));
  EXPECT_THAT(
      refused("dgx-a100:513", {.nodes_per_group = 1, .group_bandwidth = BytesPerSecond(1e9)}),
      HasSubstr("node 512 would be in group 512, counted from 0; there are at most 512"));
  EXPECT_THAT(refused(sites, {.sums = std::vector<std::string>{"leaf"}}),
              HasSubstr("switches of several groups do not add together"));
  EXPECT_THAT(refused("this-machine:2", {.latency = Seconds(1)}),
              HasSubstr("cluster \"this-machine:2\": no node has a cable to the fabric"));
}

TEST(Topologies, AJobReplacesKeys) {
  const auto job = [](const std::vector<std::string>& set) {
    return job::parse_job("model.name = \"gpt2-124m\"\ncluster.name = \"" + topologies +
                              "two-sites.toml\"\nmethod.name = \"ddp\"\ntrain.global_batch = 32\n",
                          "job.toml", set);
  };
  const auto rate = [&](const std::vector<std::string>& set) {
    return job(set).cluster.bandwidth(0, 28).value;
  };
  EXPECT_DOUBLE_EQ(rate({}), 1.25e9);
  EXPECT_DOUBLE_EQ(rate({"cluster.fabric.group_bandwidth=100Gb/s"}), 12.5e9);
  EXPECT_DOUBLE_EQ(rate({"cluster.fabric.nodes_per_group=8"}), 24e9);
  EXPECT_THAT(test::message_of([&] { job({"cluster.fabric.group_latancy=1ms"}); }),
              HasSubstr("key \"cluster.fabric.group_latancy\": unknown; did you mean"));
  EXPECT_THAT(test::message_of([&] { job({"cluster.fabric.nodes_per_group=0"}); }),
              AllOf(HasSubstr("key \"cluster.name\""), HasSubstr("needs nodes_per_group")));
}

}  // namespace
}  // namespace rehearse::cluster
