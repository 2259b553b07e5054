// Tests of SimGrid with the network's settings: max-min fair flows without hidden factors, latency
// paid by the caller, shared cores, and no lost activity.
#include "sim/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/base/errors.h"
#include "tests/sim/isolated.h"

namespace rehearse::sim {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr double gigabyte = 1e9;

/// `devices` devices, each with a link of 10 GB/s and 5 us to one switch, and one more device
/// without a link.
cluster::Cluster star(int devices) {
  cluster::Cluster cluster;
  const Id kind = cluster.add_kind({.name = "gpu"});
  const Id middle = cluster.add_vertex("switch");
  for (int i = 0; i <= devices; ++i) {
    const Id device = cluster.add_device("gpu" + std::to_string(i), kind, static_cast<Id>(i));
    if (i < devices)
      cluster.connect(cluster.vertex_of(device), middle, "wire" + std::to_string(i),
                      BytesPerSecond(10 * gigabyte), Seconds(5e-6));
  }
  return cluster;
}

struct Flow {
  Id from = 0, to = 0;
  double date = 0, bytes = 0;
};
/// The time at which each flow ends. Simulates in a child process.
std::vector<double> ends_of(const std::vector<Flow>& flows, std::vector<double> slow = {},
                            bool bypass = true) {
  return isolated([&] {
    const cluster::Cluster cluster = star(4);
    SharedNetwork network(cluster, slow, {.bypass = bypass});
    std::vector<double> ends(flows.size(), -1);
    std::vector<Id> routes;
    for (const Flow& flow : flows) routes.push_back(network.route(flow.from, flow.to, flow.bytes));
    for (std::size_t i = 0; i < flows.size(); ++i)
      network.transfer(flows[i].date, routes[i], flows[i].bytes, i);
    network.run([&](SharedNetwork::Token token) { ends[token] = network.now(); });
    return ends;
  });
}

TEST(SharedNetwork, AFlowTakesBytesOverBandwidth) {
  EXPECT_THAT(ends_of({{0, 1, 0.5, 10 * gigabyte}}), ElementsAre(DoubleNear(1.5, 1e-9)));
}

TEST(SharedNetwork, FlowsShareALinkFairly) {
  // Both flows leave device 0. When the short flow has ended, the long flow has the whole link.
  EXPECT_THAT(ends_of({{0, 1, 0, 5 * gigabyte}, {0, 2, 0, 10 * gigabyte}}),
              ElementsAre(DoubleNear(1.0, 1e-9), DoubleNear(1.5, 1e-9)));
}

TEST(SharedNetwork, AFlowThatWasAloneSharesFromWhenAnotherComes) {
  // The first flow has sent half when the second one comes; each then has half of the link. When
  // both have ended, the third one is alone again, and the fourth uses other links.
  EXPECT_THAT(ends_of({{0, 1, 0, 10 * gigabyte},
                       {0, 2, 0.5, 5 * gigabyte},
                       {0, 1, 1.5, 10 * gigabyte},
                       {2, 3, 0.25, 10 * gigabyte}}),
              ElementsAre(DoubleNear(1.5, 1e-9), DoubleNear(1.5, 1e-9), DoubleNear(2.5, 1e-9),
                          DoubleNear(1.25, 1e-9)));
}

TEST(SharedNetwork, FlowsAloneEndAsInSimGrid) {
  std::mt19937 random(7);
  const auto below = [&](unsigned n) { return static_cast<Id>(random() % n); };
  for (int round = 0; round < 20; ++round) {
    std::vector<Flow> flows;
    for (int i = 0; i < 30; ++i) {
      const Id from = below(4);
      flows.push_back({from, (from + 1 + below(3)) % 4, 0.1 * below(40), 1e8 * (1 + below(30))});
    }
    const std::vector<double> slow(8, round % 2 == 0 ? 1.0 : 1.5);
    const std::vector<double> here = ends_of(flows, slow), there = ends_of(flows, slow, false);
    for (std::size_t i = 0; i < flows.size(); ++i) EXPECT_NEAR(here[i], there[i], 1e-9) << i;
  }
}

TEST(SharedNetwork, BothDirectionsOfALinkAreSeparate) {
  EXPECT_THAT(ends_of({{0, 1, 0, 10 * gigabyte}, {1, 0, 0, 10 * gigabyte}}),
              ElementsAre(DoubleNear(1.0, 1e-9), DoubleNear(1.0, 1e-9)));
}

TEST(SharedNetwork, SharesAreMaxMinFair) {
  // The two flows into device 3 get half of its link each. The third flow gets the other half of
  // device 0's link.
  EXPECT_THAT(
      ends_of({{0, 3, 0, 10 * gigabyte}, {1, 3, 0, 10 * gigabyte}, {0, 2, 0, 5 * gigabyte}}),
      ElementsAre(DoubleNear(2, 1e-9), DoubleNear(2, 1e-9), DoubleNear(1, 1e-9)));
}

TEST(SharedNetwork, SmallFlowsAreExact) {
  // A thousand chunks of 3.25 bytes, one after the other: SimGrid must round neither to bytes nor
  // to nanoseconds.
  const double end = isolated([] {
    const cluster::Cluster cluster = star(2);
    SharedNetwork network(cluster, {});
    const Id route = network.route(0, 1, gigabyte);
    int left = 1000;
    network.transfer(0, route, 3.25, 0);
    network.run([&](SharedNetwork::Token) {
      if (--left > 0) network.transfer(network.now(), route, 3.25, 0);
    });
    return std::vector<double>{network.now(), static_cast<double>(network.flows())};
  })[0];
  EXPECT_NEAR(end, 1000 * 3.25 / (10 * gigabyte), 1e-13);
}

TEST(SharedNetwork, ASlowLinkIsSlower) {
  std::vector<double> slow(8, 1);
  slow[0] = 4;
  EXPECT_THAT(ends_of({{0, 1, 0, 10 * gigabyte}, {1, 2, 0, 10 * gigabyte}}, slow),
              ElementsAre(DoubleNear(4, 1e-9), DoubleNear(1, 1e-9)));
}

TEST(SharedNetwork, EmptyAndLocalTransfersEndAtOnce) {
  EXPECT_THAT(ends_of({{0, 1, 2.5, 0}, {1, 1, 3.5, gigabyte}}), ElementsAre(2.5, 3.5));
}

TEST(SharedNetwork, LatencyIsForTheCallerToPay) {
  EXPECT_THAT(isolated([] {
                const cluster::Cluster cluster = star(2);
                SharedNetwork network(cluster, {});
                const Id route = network.route(0, 1, gigabyte);
                return std::vector<double>{network.latency(route), network.bandwidth(route),
                                           static_cast<double>(network.links(route).size())};
              }),
              ElementsAre(1e-5, 10 * gigabyte, 2));
}

TEST(SharedNetwork, CoresAreSharedOneForEachWorkAtMost) {
  const auto ends = isolated([] {
    const cluster::Cluster cluster = star(1);
    SharedNetwork network(cluster, {});
    const Id two = network.add_cores(2);
    std::vector<double> ends(4);
    network.work(0, two, 1, 1, 0);  // alone until time 1, on one of the two cores
    for (const SharedNetwork::Token token : {1, 2, 3}) network.work(1, two, 2, 1, token);
    network.run([&](SharedNetwork::Token token) { ends[token] = network.now(); });
    return ends;
  });
  EXPECT_THAT(ends, ElementsAre(DoubleNear(1, 1e-9), DoubleNear(4, 1e-9), DoubleNear(4, 1e-9),
                                DoubleNear(4, 1e-9)));
}

TEST(SharedNetwork, ThreadsTakeACoreEach) {
  const auto ends = isolated([] {
    const cluster::Cluster cluster = star(1);
    SharedNetwork network(cluster, {});
    const Id two = network.add_cores(2);
    std::vector<double> ends(3);
    network.work(0, two, 1, 2, 0);  // two threads on two cores
    network.work(2, two, 1, 2, 1);  // four threads on two cores
    network.work(2, two, 1, 2, 2);
    network.run([&](SharedNetwork::Token token) { ends[token] = network.now(); });
    return ends;
  });
  EXPECT_THAT(ends, ElementsAre(DoubleNear(1, 1e-9), DoubleNear(4, 1e-9), DoubleNear(4, 1e-9)));
}

TEST(SharedNetwork, NoPathIsAnInputErrorThatNamesTheDevices) {
  try {
    ends_of({{0, 4, 0, 1}});
    FAIL() << "nothing was thrown";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no path from gpu0 to gpu4"));
  }
}

TEST(SharedNetwork, OneSimulationAProcess) {
  EXPECT_THROW(isolated([] {
                 const cluster::Cluster cluster = star(1);
                 const SharedNetwork first(cluster, {});
                 const SharedNetwork second(cluster, {});
                 return std::vector<double>{};
               }),
               BackendError);
}

}  // namespace
}  // namespace rehearse::sim
