// Sums made by switches: closed forms on small trees, each link carries the tensor once, groups
// that share a switch share its links and its arithmetic, and switches that do not add are named.
// Rings on a torus: closed form.
#include "engine/costs/network/in_network.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "engine/costs/costs.h"
#include "engine/costs/network/collective_prices.h"
#include "engine/costs/network/contention.h"
#include "tests/message_of.h"

namespace rehearse::costs {
namespace {

using program::Algorithm;
using program::DType;
using program::Move;
using testing::AllOf;
using testing::HasSubstr;

constexpr double us = 1e-6, wire = 10e9;
constexpr std::int64_t elements = 1 << 20;
constexpr double bytes = 4.0 * elements;

/// Nodes of `each` devices on a bus, each device with a NIC of its own; two nodes below a leaf.
cluster::Cluster pod(int nodes, int each, const std::string& sums, const std::string& more = {}) {
  std::string text =
      "summary = \"a pod\"\n[[nodes]]\ncount = " + std::to_string(nodes) + "\ndevices = [";
  std::string parts = "\"bus\"", links =
                                     "{ from = \"gpu*\", to = \"bus\", bandwidth = "
                                     "\"100GB/s\", latency = \"0us\" }";
  for (int i = 0; i < each; ++i) {
    const std::string k = std::to_string(i);
    text += "\"A100 80GB\",";
    parts += ", \"nic" + k + "\"";
    links += fmt::format(
        R"(, {{ from = "gpu{0}", to = "nic{0}", bandwidth = "100GB/s", latency = "0us" }})"
        R"(, {{ from = "nic{0}", to = "fabric/rail{0}", bandwidth = "10GB/s", latency = "1us" }})",
        k);
  }
  text += "]\nparts = [" + parts + "]\nlinks = [" + links +
          "]\n[fabric]\nnodes_per_leaf = 2\nlatency = \"2us\"\nsums = " + sums + "\n" + more;
  const std::string path = testing::TempDir() + "/in_network_pod.toml";
  std::ofstream(path) << text;
  return cluster::load_cluster(path);
}

std::vector<Id> first(int n) {
  std::vector<Id> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), Id{0});
  return out;
}

CollectiveCost cost(const cluster::Cluster& c, Move move,
                    const std::vector<std::vector<Id>>& groups, int root = 0) {
  const std::vector<int> roots(groups.size(), root);
  return collective_cost(c, move, Algorithm::in_network, elements, DType::f32, groups, roots, {});
}

constexpr const char* both = R"(["leaf", "spine"])";

TEST(InNetwork, AnAllReduceCarriesTheTensorOnceUpAndOnceDownEachLink) {
  const cluster::Cluster c = pod(4, 1, both, "sum_latency = \"3us\"\n");
  const CollectiveCost out = cost(c, Move::all_reduce, {first(4)});
  // 1 us to the leaf, 2 us to the spine, and 3 us of arithmetic on each of the two; then down.
  EXPECT_NEAR(out.seconds[0], (3 + 6 + 3) * us + bytes / wire, 1e-12);
  for (Id link = 0; link < c.links().size(); ++link) {
    const std::string& name = c.links()[link].name;
    const bool unused = name.find("bus") != std::string::npos || name.find("sums>") != name.npos;
    EXPECT_EQ(out.link_bytes[link], unused ? 0 : bytes) << name;
  }
  EXPECT_EQ(out.sent[0], std::vector<std::int64_t>(4, elements));
  // Below one leaf, the sum stays there.
  EXPECT_NEAR(cost(c, Move::all_reduce, {first(2)}).seconds[0], 5 * us + bytes / wire, 1e-12);
}

TEST(InNetwork, HalvesTheBytesOfARing) {
  const cluster::Cluster c = pod(8, 1, both);
  const double ring = collective_seconds(c, Move::all_reduce, Algorithm::ring, 64 * elements,
                                         DType::f32, {first(8)})[0];
  const double sums = collective_seconds(c, Move::all_reduce, Algorithm::in_network, 64 * elements,
                                         DType::f32, {first(8)})[0];
  EXPECT_NEAR(ring / sums, 2 * 7 / 8.0, 0.01);
}

TEST(InNetwork, ABroadcastOnlyGoesDownAndAReduceOnlyGoesUp) {
  const cluster::Cluster c = pod(4, 1, both);
  const auto used = [&](const CollectiveCost& out, const std::string& name) {
    for (Id link = 0; link < c.links().size(); ++link)
      if (c.links()[link].name == name) return out.link_bytes[link];
    ADD_FAILURE() << name;
    return -1.0;
  };
  const CollectiveCost down = cost(c, Move::broadcast, {first(4)}, 2);
  EXPECT_EQ(used(down, "node2/nic0>fabric/rail0/leaf1"), bytes);
  EXPECT_EQ(used(down, "node0/nic0>fabric/rail0/leaf0"), 0);
  EXPECT_EQ(used(down, "fabric/rail0/leaf0>node0/nic0"), bytes);
  EXPECT_EQ(used(down, "fabric/rail0/leaf1>node2/nic0"), 0);
  EXPECT_EQ(used(down, "spine>spine/sums"), 0);
  EXPECT_EQ(down.sent[0], (std::vector<std::int64_t>{0, 0, elements, 0}));
  const CollectiveCost up = cost(c, Move::reduce, {first(4)}, 2);
  EXPECT_EQ(used(up, "node0/nic0>fabric/rail0/leaf0"), bytes);
  EXPECT_EQ(used(up, "fabric/rail0/leaf0>node0/nic0"), 0);
  EXPECT_EQ(used(up, "fabric/rail0/leaf1>node2/nic0"), bytes);
  EXPECT_EQ(used(up, "spine>spine/sums"), bytes);
}

TEST(InNetwork, MembersOfANodeShareTheTensorOverTheirNics) {
  const cluster::Cluster c = pod(4, 2, both);
  const CollectiveCost out = cost(c, Move::all_reduce, {first(8)});
  EXPECT_NEAR(out.seconds[0], 6 * us + bytes / 2 / wire, 1e-12);
  // Each sends half to its neighbour and, when half is summed, that half; and half to the switch.
  EXPECT_EQ(out.sent[0], std::vector<std::int64_t>(8, 3 * elements / 2));
  // Unequal nodes: the only member of the last one carries both halves.
  const CollectiveCost odd = cost(c, Move::all_reduce, {{0, 1, 2, 3, 4}});
  EXPECT_EQ(odd.sent[0][4], elements);
  EXPECT_NEAR(odd.seconds[0], 6 * us + bytes / wire, 1e-12);
}

TEST(InNetwork, GroupsThatShareASwitchShareItsLinksAndItsArithmetic) {
  const cluster::Cluster c = pod(4, 1, both);
  EXPECT_NEAR(cost(c, Move::all_reduce, {{0, 2}, {1, 3}}).seconds[0], 6 * us + bytes / wire,
              1e-12);  // the leaf's cable to the spine is twice as wide
  const cluster::Cluster narrow = pod(4, 1, both, "sum_bandwidth = \"5GB/s\"\n");
  EXPECT_NEAR(cost(narrow, Move::all_reduce, {{0, 2}}).seconds[0], 6 * us + bytes / 5e9, 1e-12);
  EXPECT_NEAR(cost(narrow, Move::all_reduce, {{0, 2}, {1, 3}}).seconds[1], 6 * us + 2 * bytes / 5e9,
              1e-12);
}

TEST(InNetwork, ASwitchThatDoesNotAddIsNamed) {
  EXPECT_EQ(why_not_in_network(pod(4, 1, both), first(4)), "");
  const cluster::Cluster leaves = pod(4, 1, R"(["leaf"])");
  EXPECT_EQ(why_not_in_network(leaves, first(2)), "");
  EXPECT_THAT(why_not_in_network(leaves, first(4)),
              AllOf(HasSubstr("switch spine does not add"), HasSubstr("hierarchical or ring")));
  // Node 0 alone is below leaf 0, so only the spine has branches.
  const cluster::Cluster spine = pod(4, 1, R"(["spine"])");
  EXPECT_EQ(why_not_in_network(spine, std::vector<Id>{0, 2}), "");
  EXPECT_THAT(why_not_in_network(spine, std::vector<Id>{0, 1, 2}),
              HasSubstr("switch fabric/rail0/leaf0 does not add"));
  EXPECT_THAT(why_not_in_network(pod(2, 2, both), first(2)), HasSubstr("on one node"));
  EXPECT_THAT(test::message_of([&] { cost(leaves, Move::all_reduce, {first(4)}); }),
              HasSubstr("switch spine does not add"));
}

TEST(InNetwork, ALibraryChoosesItWhereItHasItAndTheSwitchesAdd) {
  cluster::Cluster c = pod(8, 1, both);
  CollectivePrices rounds(c);
  const Id in_rounds = rounds.groups({first(8)}, {});
  EXPECT_NE(rounds.fastest(in_rounds, Move::all_reduce, 64 * elements, DType::f32),
            Algorithm::in_network);  // real ranks without such a library emulate it
  c.use_library(software::load_library("nccl-2.20"));
  CollectivePrices nccl(c);
  const Id group = nccl.groups({first(8)}, {});
  EXPECT_EQ(nccl.fastest(group, Move::all_reduce, 64 * elements, DType::f32),
            Algorithm::in_network);
  EXPECT_EQ(nccl.fastest(group, Move::reduce_scatter, 64 * elements, DType::f32), Algorithm::ring);
  cluster::Cluster plain = pod(8, 1, "[]");
  plain.use_library(software::load_library("nccl-2.20"));
  CollectivePrices none(plain);
  EXPECT_NE(none.fastest(none.groups({first(8)}, {}), Move::all_reduce, 64 * elements, DType::f32),
            Algorithm::in_network);
}

TEST(Torus, AnAllReduceUsesAllSixLinksOfEachChip) {
  const cluster::Cluster c = cluster::load_cluster("tpu-v4:4x4x4");
  const std::int64_t n = std::int64_t{64} * 6 * 65536;
  const double seconds =
      collective_seconds(c, Move::all_reduce, Algorithm::ring, n, DType::f32, {first(64)})[0];
  EXPECT_NEAR(seconds, 18 * us + 2.0 * 63 / 64 * 4 * static_cast<double>(n) / (6 * 50e9),
              1e-6 * seconds);
  // A line of chips is a ring along one dimension, over both of its links.
  EXPECT_EQ(wiring_of(c, first(4)).torus, (std::vector<int>{4, 1, 1}));
  const double line =
      collective_seconds(c, Move::all_gather, Algorithm::ring, n, DType::f32, {first(4)})[0];
  EXPECT_NEAR(line, 3 * us + 0.75 * 4 * static_cast<double>(n) / (2 * 50e9), 1e-6 * line);
  // Planes of constant x are blocks too; an arbitrary set is none.
  std::vector<Id> plane;
  for (Id d = 0; d < 64; d += 4) plane.push_back(d);
  EXPECT_EQ(wiring_of(c, plane).torus, (std::vector<int>{1, 4, 4}));
  EXPECT_TRUE(wiring_of(c, std::vector<Id>{0, 1, 6}).torus.empty());
  EXPECT_TRUE(wiring_of(c, std::vector<Id>{1, 0, 4, 5}).torus.empty());
}

}  // namespace
}  // namespace rehearse::costs
