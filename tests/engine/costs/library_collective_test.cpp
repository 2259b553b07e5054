// Tests collectives that the communication library runs itself: closed forms of ring, tree and
// NVLS on hand-made clusters, equal shares of every NIC, and the library's choice.
#include "engine/costs/network/library_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "engine/costs/costs.h"
#include "engine/costs/network/collective_prices.h"
#include "engine/costs/network/contention.h"
#include "tests/message_of.h"

namespace rehearse::costs {
namespace {

using program::Algorithm;
using program::Move;

constexpr double us = 1e-6, fast = 100e9, slow = 8e9;

software::Protocol protocol(Algorithm algorithm, const std::string& name, double base,
                            double efficiency, double believed = 0) {
  software::ProtocolTimes times{.base = Seconds(base * us),
                                .nvlink = Seconds(1 * us),
                                .pcie = Seconds(2 * us),
                                .network = Seconds(5 * us),
                                .efficiency = efficiency};
  software::Protocol out{.algorithm = algorithm, .name = name, .measured = times};
  out.estimated = times;
  if (believed > 0) out.estimated.base = Seconds(believed * us);
  return out;
}

/// `nodes` nodes of `each` devices on an NVLink switch, each device with a NIC of its own.
cluster::Cluster pod(int nodes, int each, std::vector<software::Protocol> protocols,
                     bool sums = false, double copies = 0) {
  cluster::Cluster c;
  const Id kind = c.add_kind({.name = "unit",
                              .memory = Bytes(1e12),
                              .peak_f32 = FlopsPerSecond(1e30),
                              .memory_bandwidth = BytesPerSecond(1e30)});
  const Id fabric = c.add_vertex("fabric");
  for (int n = 0; n < nodes; ++n) {
    const std::string node = "node" + std::to_string(n) + "/";
    const Id hub = c.add_vertex(node + "switch", static_cast<Id>(n), sums);
    for (int i = 0; i < each; ++i) {
      const Id d = c.add_device(node + "gpu" + std::to_string(i), kind, static_cast<Id>(n));
      c.connect(c.vertex_of(d), hub, "", BytesPerSecond(fast), Seconds(), true);
      const Id nic = c.add_vertex(node + "nic" + std::to_string(i), static_cast<Id>(n));
      c.connect(c.vertex_of(d), nic, "", BytesPerSecond(fast), Seconds());
      c.connect(nic, fabric, "", BytesPerSecond(slow), Seconds(1 * us));
    }
  }
  software::Library library;
  library.copies = copies;
  library.protocols = std::move(protocols);
  c.use_library(std::move(library));
  return c;
}

std::vector<Id> first(int n) {
  std::vector<Id> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), Id{0});
  return out;
}

TEST(LibraryCollective, ARingInANodePaysEveryHopOnceAndAllBytesTogether) {
  for (const int n : {2, 4, 8}) {
    const cluster::Cluster c = pod(1, n, {protocol(Algorithm::ring, "P", 10, 0.5)});
    const double bytes = 8e6;
    const auto seconds = [&](Move move) {
      return library_collective(c, move, Algorithm::ring, bytes, first(n)).seconds;
    };
    EXPECT_NEAR(seconds(Move::all_reduce),
                (10 + 2 * (n - 1)) * us + 2.0 * (n - 1) / n * bytes / 0.5 / fast, 1e-12);
    EXPECT_NEAR(seconds(Move::all_gather),
                (10 + n - 1) * us + 1.0 * (n - 1) / n * bytes / 0.5 / fast, 1e-12);
    EXPECT_NEAR(seconds(Move::broadcast), (10 + n - 1) * us + bytes / 0.5 / fast, 1e-12);
  }
}

TEST(LibraryCollective, CopiesLengthenARingAllReduceAlone) {
  const cluster::Cluster c = pod(1, 4, {protocol(Algorithm::ring, "P", 0, 1)}, false, 0.5);
  const LibraryCollective sum =
      library_collective(c, Move::all_reduce, Algorithm::ring, 4e6, first(4));
  EXPECT_NEAR(sum.seconds - sum.latency, 6.5 / 4 * 4e6 / fast, 1e-12);
  const LibraryCollective gather =
      library_collective(c, Move::all_gather, Algorithm::ring, 4e6, first(4));
  EXPECT_NEAR(gather.seconds - gather.latency, 3.0 / 4 * 4e6 / fast, 1e-12);
}

TEST(LibraryCollective, RingsOverNodesShareAllNics) {
  // Three nodes of four: each NIC carries a fourth of what the one ring would; NVLink carries the
  // ring's bytes once. Latency: 2 x (8 hops in nodes, 2 hops between them with 2 us of links).
  const cluster::Cluster c = pod(3, 4, {protocol(Algorithm::ring, "P", 10, 1)});
  const double bytes = 12e6, all = 2.0 * 11 / 12 * bytes;
  const LibraryCollective ring =
      library_collective(c, Move::all_reduce, Algorithm::ring, bytes, first(12));
  EXPECT_NEAR(ring.latency, (10 + 2 * (9 * 1 + 2 * 7)) * us, 1e-12);
  EXPECT_NEAR(ring.seconds - ring.latency, all / 4 / slow, 1e-12);
  std::map<int, double> leaving, entering, inside;
  for (const Flow& flow : ring.flows) {
    if (flow.from / 4 == flow.to / 4) {
      inside[flow.from] += flow.bytes;
    } else {
      leaving[flow.from] += flow.bytes, entering[flow.to] += flow.bytes;
      // The member that receives is on the rail of the one that sends; the last edge closes the
      // ring wherever it began.
      if (flow.to / 4 != 0) {
        EXPECT_EQ(flow.from % 4, flow.to % 4);
      }
    }
  }
  for (int m = 0; m < 12; ++m) {
    EXPECT_NEAR(leaving[m], all / 4, 1e-6) << m;
    EXPECT_NEAR(entering[m], all / 4, 1e-6) << m;
    EXPECT_NEAR(inside[m], all * 3 / 4, 1e-6) << m;
  }
}

TEST(LibraryCollective, ATreeOverTwoNodesSendsTheTensorOnceEachWay) {
  const cluster::Cluster c = pod(
      2, 4,
      {protocol(Algorithm::ring, "P", 10, 1, 1000), protocol(Algorithm::double_tree, "P", 10, 1)});
  const double bytes = 8e6;
  const LibraryCollective tree =
      library_collective(c, Move::all_reduce, Algorithm::double_tree, bytes, first(8));
  EXPECT_EQ(tree.algorithm, Algorithm::double_tree);
  EXPECT_NEAR(tree.latency, (10 + 2 * (3 * 1 + 7)) * us, 1e-12);
  EXPECT_NEAR(tree.seconds - tree.latency, bytes / 4 / slow, 1e-12);
  // A tree serves sums over several nodes alone; the ring takes the rest.
  EXPECT_EQ(
      library_collective(c, Move::all_gather, Algorithm::double_tree, bytes, first(8)).algorithm,
      Algorithm::ring);
  EXPECT_EQ(
      library_collective(c, Move::all_reduce, Algorithm::double_tree, bytes, first(4)).algorithm,
      Algorithm::ring);
}

TEST(LibraryCollective, ASwitchThatSumsNeedsEachTensorOnce) {
  const std::vector<software::Protocol> protocols{protocol(Algorithm::ring, "P", 10, 1, 1000),
                                                  protocol(Algorithm::nvls, "P", 10, 1)};
  const cluster::Cluster c = pod(2, 8, protocols, true);
  const double bytes = 8e6;
  const auto run = [&](const cluster::Cluster& on, const std::vector<Id>& devices) {
    return library_collective(on, Move::all_reduce, Algorithm::automatic, bytes, devices);
  };
  const LibraryCollective one = run(c, first(8));
  EXPECT_EQ(one.algorithm, Algorithm::nvls);
  EXPECT_NEAR(one.latency, 11 * us, 1e-12);
  EXPECT_NEAR(one.seconds - one.latency, bytes * (1 + 1.0 / 8) / fast, 1e-12);
  const LibraryCollective two = run(c, first(16));
  EXPECT_NEAR(two.latency, (11 + 2 * 7) * us, 1e-12);
  EXPECT_NEAR(two.seconds - two.latency, bytes / 8 / slow, 1e-12);
  EXPECT_EQ(run(pod(2, 8, protocols, false), first(8)).algorithm, Algorithm::ring);
  EXPECT_EQ(run(c, {0, 8}).algorithm, Algorithm::ring);           // one device in each node
  EXPECT_EQ(run(c, {0, 1, 2, 8, 9}).algorithm, Algorithm::ring);  // three and two
}

TEST(LibraryCollective, TheLibraryTakesWhatItBelievesToBeFastest) {
  // "slow start" is faster for large tensors, and the library is wrong about its start.
  const cluster::Cluster c = pod(1, 4,
                                 {protocol(Algorithm::ring, "quick", 10, 0.25),
                                  protocol(Algorithm::ring, "slow start", 100, 1, 20)});
  const auto chosen = [&](double bytes) {
    return library_collective(c, Move::all_reduce, Algorithm::automatic, bytes, first(4))
        .protocol->name;
  };
  // 10 us more against three times 1.5 bytes / fast: equal at 222 kB.
  EXPECT_EQ(chosen(200e3), "quick");
  EXPECT_EQ(chosen(250e3), "slow start");
  const std::vector<LibraryCollective> all = library_choices(c, Move::all_reduce, 250e3, first(4));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_LT(all[0].seconds, all[1].seconds);
  EXPECT_EQ(library_collective(c, Move::all_reduce, Algorithm::ring, 250e3, first(4), 0, "quick")
                .protocol->name,
            "quick");
  EXPECT_THAT(test::message_of([&] {
                library_collective(c, Move::all_reduce, Algorithm::ring, 1e3, first(4), 0, "fast");
              }),
              testing::HasSubstr("it has quick, slow start"));
}

TEST(LibraryCollective, NvlinkOnlyProtocolsNeedNvlinkBetweenTheMembersOfANode) {
  software::Protocol only = protocol(Algorithm::ring, "only", 1, 1);
  only.nvlink_only = true;
  const std::vector<software::Protocol> protocols{protocol(Algorithm::ring, "any", 10, 1), only};
  const auto names = [&](const cluster::Cluster& c, const std::vector<Id>& devices) {
    std::vector<std::string> out;
    for (const LibraryCollective& one : library_choices(c, Move::all_reduce, 1e6, devices))
      out.push_back(one.protocol->name);
    return out;
  };
  EXPECT_THAT(names(pod(1, 4, protocols), first(4)), testing::ElementsAre("any", "only"));
  cluster::Cluster bus = cluster::load_cluster("server-4090");
  software::Library library;
  library.protocols = protocols;
  bus.use_library(library);
  EXPECT_THAT(names(bus, first(4)), testing::ElementsAre("any"));
  // Hops over PCIe have their own latency.
  EXPECT_NEAR(library_collective(bus, Move::all_reduce, Algorithm::ring, 1e6, first(4)).latency,
              (10 + 6 * 2) * us, 1e-12);
}

// PCIe is nearer than NVLink here, so a lone short transfer takes it.
TEST(LibraryCollective, ShortMessagesUseNvlinkToo) {
  cluster::Cluster c;
  const Id kind = c.add_kind({.name = "unit",
                              .memory = Bytes(1e12),
                              .peak_f32 = FlopsPerSecond(1e30),
                              .memory_bandwidth = BytesPerSecond(1e30)});
  const Id nvswitch = c.add_vertex("nvswitch", 0), pcie = c.add_vertex("pcie", 0);
  for (int i = 0; i < 2; ++i) {
    const Id vertex = c.vertex_of(c.add_device("gpu" + std::to_string(i), kind, 0));
    c.connect(vertex, nvswitch, "", BytesPerSecond(fast), Seconds(2 * us), true);
    c.connect(vertex, pcie, "", BytesPerSecond(slow), Seconds(0.5 * us));
  }
  ASSERT_FALSE(c.links()[c.path(0, 1, 8)[0]].nvlink);
  software::Library library;
  library.protocols = {protocol(Algorithm::ring, "P", 10, 1)};
  c.use_library(std::move(library));
  EXPECT_NEAR(library_collective(c, Move::all_reduce, Algorithm::ring, 8, first(2)).latency,
              (10 + 2 * 1) * us, 1e-12);
}

TEST(LibraryCollective, ThePricesOfCostsAreTheSame) {
  for (const char* name : {"dgx1", "dgx-a100:2", "dgx-h100:2", "server-4090:2"}) {
    cluster::Cluster c = cluster::load_cluster(name);
    c.use_library(software::load_library("nccl-2.20"));
    const std::vector<Id> devices = first(static_cast<int>(c.devices().size()));
    CollectivePrices prices(c);
    const Id group = prices.groups({devices}, {0});
    for (const Move move :
         {Move::all_reduce, Move::reduce_scatter, Move::all_gather, Move::broadcast, Move::reduce})
      for (const std::int64_t elements : {256, 262144, 16777216}) {
        const Algorithm fastest = prices.fastest(group, move, elements, program::DType::f32);
        const LibraryCollective one = library_collective(
            c, move, Algorithm::automatic, 4.0 * static_cast<double>(elements), devices);
        EXPECT_EQ(fastest, one.algorithm) << name;
        EXPECT_NEAR(
            collective_seconds(c, move, fastest, elements, program::DType::f32, {devices})[0] /
                one.seconds,
            1, 1e-9)
            << name << " " << elements;
      }
  }
}

TEST(LibraryCollective, AnAllToAllIsDirect) {
  cluster::Cluster c = cluster::load_cluster("dgx-a100:2");
  c.use_library(software::load_library("nccl-2.20"));
  const std::vector<Id> devices = first(16);
  CollectivePrices prices(c);
  const Id group = prices.groups({devices}, {0});
  const std::int64_t elements = 16 << 20;
  EXPECT_EQ(prices.fastest(group, Move::all_to_all, elements, program::DType::u8),
            Algorithm::direct);
  EXPECT_TRUE(considered(c, Algorithm::direct, Move::all_to_all, true));
  EXPECT_FALSE(considered(c, Algorithm::ring, Move::all_to_all, true));
  const CollectiveCost cost =
      collective_cost(c, Move::all_to_all, Algorithm::automatic, elements, program::DType::u8,
                      {devices}, std::vector<int>{0}, {});
  EXPECT_EQ(cost.sent[0], std::vector<std::int64_t>(16, elements / 16 * 15));
  EXPECT_EQ(cost.seconds[0], prices.seconds(group, Move::all_to_all, Algorithm::direct, elements,
                                            program::DType::u8)[0]);
  // A library without times of `direct` runs rounds: three, of a part over every device's link.
  const cluster::Cluster node = pod(1, 4, {protocol(Algorithm::ring, "fast", 10, 0.5)});
  EXPECT_NEAR(collective_seconds(node, Move::all_to_all, Algorithm::direct, 4'000'000,
                                 program::DType::u8, {first(4)})[0],
              3 * 1e6 / fast, 1e-12);
}

TEST(LibraryCollective, AnAllToAllOfTheLibrarySendsToAllPeersAtTheSameTime) {
  const cluster::Cluster c =
      pod(2, 4, {protocol(Algorithm::ring, "P", 1, 1), protocol(Algorithm::direct, "D", 10, 0.5)});
  const double bytes = 8e6;
  EXPECT_TRUE(library_runs(c, Algorithm::automatic, Move::all_to_all));
  const LibraryCollective one =
      library_collective(c, Move::all_to_all, Algorithm::automatic, bytes, first(8));
  EXPECT_EQ(one.algorithm, Algorithm::direct);
  // Three peers in the node and four in the other one, behind 2 us of links.
  EXPECT_NEAR(one.latency, (10 + 3 * 1 + 4 * 5 + 2) * us, 1e-12);
  EXPECT_NEAR(one.seconds - one.latency, 4.0 / 8 * bytes / 0.5 / slow, 1e-12);
  EXPECT_EQ(one.flows.size(), 8U * 7U);
  const LibraryCollective in_node =
      library_collective(c, Move::all_to_all, Algorithm::direct, bytes, first(4));
  EXPECT_NEAR(in_node.seconds, (10 + 3) * us + 3.0 / 4 * bytes / 0.5 / fast, 1e-12);
  EXPECT_NEAR(collective_seconds(c, Move::all_to_all, Algorithm::direct, 2'000'000,
                                 program::DType::f32, {first(8)}, {})[0],
              one.seconds, 1e-12);
  // Nothing else runs directly, and an all-to-all in no other way.
  const auto ways = library_choices(c, Move::all_reduce, bytes, first(8));
  ASSERT_EQ(ways.size(), 1U);
  EXPECT_EQ(ways[0].algorithm, Algorithm::ring);
  EXPECT_EQ(library_choices(c, Move::all_to_all, bytes, first(8)).size(), 1U);
}

// Twelve nodes of eight: fewer flows than pairs, with which each device is as busy, and each pair
// of nodes up to a flow.
TEST(LibraryCollective, ALargeAllToAllNeedsFewFlows) {
  const cluster::Cluster c =
      pod(12, 8, {protocol(Algorithm::ring, "P", 1, 1), protocol(Algorithm::direct, "D", 10, 1)});
  const double bytes = 96e6, part = bytes / 96;
  const LibraryCollective one =
      library_collective(c, Move::all_to_all, Algorithm::direct, bytes, first(96));
  EXPECT_EQ(one.flows.size(), 96U * (7 + 8));
  EXPECT_NEAR(one.latency, (10 + 7 * 1 + 88 * 5 + 2) * us, 1e-12);
  EXPECT_NEAR(one.seconds - one.latency, 88 * part / slow, 1e-12);
  std::map<int, double> sent, received;
  std::map<std::pair<int, int>, double> between;  // nodes
  for (const Flow& flow : one.flows) {
    EXPECT_NE(flow.from, flow.to);
    sent[flow.from] += flow.bytes, received[flow.to] += flow.bytes;
    between[{flow.from / 8, flow.to / 8}] += flow.bytes;
  }
  for (int m = 0; m < 96; ++m) {
    EXPECT_NEAR(sent[m], 95 * part, 1e-3);
    EXPECT_NEAR(received[m], 95 * part, 1e-3);
  }
  EXPECT_EQ(between.size(), 12U * 12U);
  for (const auto& [nodes, sum] : between)
    EXPECT_NEAR(sum / part, nodes.first == nodes.second ? 56 : 64, 11);
}

TEST(LibraryCollective, GroupsOfOneOpShareLinks) {
  // Two groups, each with one member in each node, of devices that share a NIC.
  cluster::Cluster c = cluster::load_cluster("server-4090:2");
  c.use_library(software::load_library("nccl-2.20"));
  const std::int64_t elements = 1 << 24;
  const double alone = collective_seconds(c, Move::all_reduce, Algorithm::ring, elements,
                                          program::DType::f32, {{0, 8}})[0];
  const auto both = collective_seconds(c, Move::all_reduce, Algorithm::ring, elements,
                                       program::DType::f32, {{0, 8}, {1, 9}});
  EXPECT_NEAR(both[0] / alone, 2, 0.02);
  EXPECT_DOUBLE_EQ(both[0], both[1]);
}

}  // namespace
}  // namespace rehearse::costs
