// Tests eq. 1 and its minimisation: values worked out by hand, and properties on random clusters.
// Also tests co-location (colocate.h) and shares (shares.h).
#include "engine/planner/placement/assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "engine/planner/placement/colocate.h"
#include "engine/planner/placement/rank_grid.h"
#include "engine/planner/placement/shares.h"

namespace rehearse::planner {
namespace {

/// By node: number of devices on its bus, bandwidth of each device's link to the bus, and bandwidth
/// of the bus's link to the switch.
cluster::Cluster nodes_of(const std::vector<int>& devices, const std::vector<double>& inside,
                          const std::vector<double>& outside) {
  cluster::Cluster c;
  const Id kind = c.add_kind({.name = "unit"});
  const Id fabric = c.add_vertex("fabric");
  for (Id n = 0; n < devices.size(); ++n) {
    const std::string node = "node" + std::to_string(n);
    const Id bus = c.add_vertex(node + "/bus", n);
    c.connect(bus, fabric, node + "/nic", BytesPerSecond(outside[n]), Seconds(0));
    for (int g = 0; g < devices[n]; ++g) {
      const std::string name = node + "/gpu" + std::to_string(g);
      const Id d = c.add_device(name, kind, n);
      c.connect(c.vertex_of(d), bus, name + "/slot", BytesPerSecond(inside[n]), Seconds(0));
    }
  }
  return c;
}

std::vector<Id> all_of(const cluster::Cluster& cluster) {
  std::vector<Id> out(cluster.devices().size());
  std::iota(out.begin(), out.end(), Id{0});
  return out;
}

Distances table_of(const cluster::Cluster& cluster, const costs::Profile* profile = nullptr) {
  return {cluster, all_of(cluster), profile};
}

/// A random instance: different nodes, random traffic along a chain of ranks and between others.
struct Instance {
  cluster::Cluster cluster = {};
  std::vector<RankTraffic> traffic = {};
  std::size_t ranks = 0;
  explicit Instance(unsigned seed, int most = 8) {
    std::mt19937 random(seed);
    const auto pick = [&](int from, int to) {
      return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
    };
    std::vector<int> devices;
    std::vector<double> inside, outside;
    for (int left = pick(3, most); left > 0; left -= devices.back()) {
      devices.push_back(std::min(left, pick(1, 3)));
      inside.push_back(pick(5, 50));
      outside.push_back(pick(1, 9));
    }
    cluster = nodes_of(devices, inside, outside);
    ranks = cluster.devices().size() - static_cast<std::size_t>(pick(0, 1));
    for (Id a = 0; a < ranks; ++a)
      for (Id b = 0; b < ranks; ++b)
        if (a != b && (b == a + 1 || pick(0, 3) == 0))
          traffic.push_back({a, b, static_cast<double>(pick(1, 100))});
  }
};

double brute_force(const Instance& instance, const Distances& d) {
  Assignment places = all_of(instance.cluster);
  double best = 1e300;
  do {
    const Assignment at(places.begin(),
                        places.begin() + static_cast<std::ptrdiff_t>(instance.ranks));
    best = std::min(best, cost_of(instance.traffic, at, d));
  } while (std::next_permutation(places.begin(), places.end()));
  return best;
}

TEST(Eq1, ByHand) {
  // Two nodes of two devices. Device links have 10 B/s, the nodes' links to the switch 4 and 2 B/s.
  const cluster::Cluster cluster = nodes_of({2, 2}, {10, 10}, {4, 2});
  const Distances d = table_of(cluster);
  // In a node, two device links: 1/10 + 1/10 = 0.2 s/B. Between nodes, also both links to the
  // switch: 1/10 + 1/4 + 1/2 + 1/10 = 0.95 s/B.
  EXPECT_DOUBLE_EQ(d(0, 1), 0.2);
  EXPECT_DOUBLE_EQ(d(1, 2), 0.95);
  EXPECT_EQ(d(3, 3), 0);
  // Four layers on devices 0, 0, 1, 2 with c = 100, 40, 20 B: 100 x 0 + 40 x 0.2 + 20 x 0.95 = 27
  // s.
  EXPECT_DOUBLE_EQ(eq1(std::vector<double>{100, 40, 20}, std::vector<Id>{0, 0, 1, 2}, d), 27);
  // No layer follows the last one, so its c does not count.
  EXPECT_DOUBLE_EQ(eq1(std::vector<double>{100, 40, 20, 7}, std::vector<Id>{0, 0, 1, 2}, d), 27);
}

TEST(Eq1, IsWhatAChainOfRanksCosts) {
  const cluster::Cluster cluster = nodes_of({2, 2}, {10, 10}, {4, 2});
  const Distances d = table_of(cluster);
  const std::vector<RankTraffic> chain{{0, 1, 100}, {1, 2, 40}, {2, 3, 20}};
  const Assignment at{1, 0, 3, 2};
  EXPECT_DOUBLE_EQ(cost_of(chain, at, d), eq1(std::vector<double>{100, 40, 20}, at, d));
}

TEST(Distances, ComeFromMeasuredPairsByShortestPaths) {
  const cluster::Cluster cluster = nodes_of({3}, {10}, {1});
  costs::Profile profile;
  // 0 -> 1 was measured as slow, 1/2 s/B. By way of device 2 it is 1/8 + 1/8 = 0.25 s/B. 1 -> 0 was
  // not measured and keeps its two device links, 0.2 s/B.
  profile.pairs = {{.from = 0, .to = 1, .bandwidth = 2},
                   {.from = 0, .to = 2, .bandwidth = 8},
                   {.from = 2, .to = 1, .bandwidth = 8}};
  const Distances d = table_of(cluster, &profile);
  EXPECT_DOUBLE_EQ(d(0, 1), 0.25);
  EXPECT_DOUBLE_EQ(d(0, 2), 0.125);
  EXPECT_DOUBLE_EQ(d(1, 0), 0.2);
}

TEST(Distances, WorldsBeyondTheTableAreLookedUp) {
  const cluster::Cluster cluster =
      nodes_of(std::vector<int>(65, 4), std::vector<double>(65, 10), std::vector<double>(65, 4));
  const Distances d = table_of(cluster);  // 260 devices
  EXPECT_FALSE(d.tabled());
  EXPECT_DOUBLE_EQ(d(0, 1), 0.2);
  EXPECT_DOUBLE_EQ(d(0, 259), 0.7);  // 1/10 + 1/4 + 1/4 + 1/10
}

TEST(Assignment, ExactIsWhatBruteForceFinds) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    const Instance instance(seed, 7);
    const Distances d = table_of(instance.cluster);
    const auto exact = exact_assignment(instance.traffic, instance.ranks, d);
    ASSERT_TRUE(exact);
    const double best = brute_force(instance, d);
    EXPECT_NEAR(cost_of(instance.traffic, *exact, d), best, 1e-9 * best) << "seed " << seed;
  }
}

TEST(Assignment, GreedyNeverBeatsExactAndLocalSearchNeverLoses) {
  double worst_greedy = 0, worst_local = 0, greedy_sum = 0, local_sum = 0;
  constexpr int instances = 200;
  for (unsigned seed = 1; seed <= instances; ++seed) {
    const Instance instance(seed);
    const Distances d = table_of(instance.cluster);
    const Assignment greedy = greedy_assignment(instance.traffic, instance.ranks, d);
    const Assignment local = local_search(instance.traffic, greedy, d);
    const double g = cost_of(instance.traffic, greedy, d), l = cost_of(instance.traffic, local, d);
    const double e =
        cost_of(instance.traffic, *exact_assignment(instance.traffic, instance.ranks, d), d);
    EXPECT_GE(g, e * (1 - 1e-9)) << "seed " << seed;
    EXPECT_LE(l, g * (1 + 1e-9)) << "seed " << seed;
    EXPECT_GE(l, e * (1 - 1e-9)) << "seed " << seed;
    worst_greedy = std::max(worst_greedy, g / e - 1),
    worst_local = std::max(worst_local, l / e - 1);
    greedy_sum += g / e - 1, local_sum += l / e - 1;
    std::vector<Id> seen = local;  // no two ranks share a device
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  }
  std::printf(
      "gap to the optimum over %d instances: greedy %.1f%% (worst %.1f%%), local search "
      "%.1f%% (worst %.1f%%)\n",
      instances, 100 * greedy_sum / instances, 100 * worst_greedy, 100 * local_sum / instances,
      100 * worst_local);
  EXPECT_GT(greedy_sum, local_sum);
  EXPECT_LT(local_sum / instances, 0.1);
}

TEST(Assignment, MeasuredPairsNeedNotBeSymmetric) {
  // The gain of a swap counts the traffic between the two ranks once, with the distance of its
  // direction.
  const cluster::Cluster cluster = nodes_of({2}, {10}, {1});
  costs::Profile profile;
  profile.pairs = {{.from = 0, .to = 1, .bandwidth = 1}, {.from = 1, .to = 0, .bandwidth = 10}};
  const Distances d = table_of(cluster, &profile);
  const std::vector<RankTraffic> traffic{{0, 1, 10}, {1, 0, 1}};
  const Assignment local = local_search(traffic, {0, 1}, d);
  EXPECT_EQ(local, (Assignment{1, 0}));  // 10 x 0.1 + 1 x 1 = 2 instead of 10 x 1 + 1 x 0.1
  EXPECT_DOUBLE_EQ(cost_of(traffic, local, d), 2);
}

TEST(Assignment, SwapsOnlyWhatIsAlike) {
  const cluster::Cluster cluster = nodes_of({2, 2}, {10, 10}, {1, 1});
  const Distances d = table_of(cluster);
  const std::vector<RankTraffic> traffic{{0, 1, 10}};
  EXPECT_EQ(local_search(traffic, {0, 2}, d, std::vector<Id>{0, 1, 1, 1}), (Assignment{0, 1}));
  EXPECT_EQ(local_search(traffic, {0, 2}, d, std::vector<Id>{0, 1, 2, 3}), (Assignment{0, 2}));
}

TEST(Colocate, RunsOfFourToSixLayersWithTheCheapestSeams) {
  // 12 layers, two nodes of two devices. Only a seam after 6 layers leaves two runs of 4 to 6
  // layers.
  const cluster::Cluster cluster = nodes_of({2, 2}, {10, 20}, {1, 1});
  const Distances d = table_of(cluster);
  const std::vector<Id> node{0, 0, 1, 1};
  std::vector<double> c(12, 1);
  c[1] = 5;  // more bytes inside the first run: it goes to node 1 with the faster links
  EXPECT_EQ(colocate(c, node, d), (std::vector<Id>{2, 2, 2, 3, 3, 3, 0, 0, 0, 1, 1, 1}));
  // Ten layers: the seam may be after 4, 5 or 6 layers; the one after 5 is cheapest.
  std::vector<double> ten(10, 3);
  ten[4] = 1;
  const std::vector<Id> placed = colocate(ten, node, d);
  EXPECT_EQ(node[placed[4]], node[placed[0]]);
  EXPECT_NE(node[placed[5]], node[placed[4]]);
  // Fewer than four layers: one run, on the faster node.
  EXPECT_EQ(colocate(std::vector<double>(3, 1), node, d), (std::vector<Id>{2, 2, 3}));
}

TEST(Colocate, AsPrintedNeverBeatsExactOnItsOwnStages) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    const Instance instance(seed);
    const Distances d = table_of(instance.cluster);
    std::vector<Id> node;
    for (const cluster::Device& device : instance.cluster.devices()) node.push_back(device.node);
    std::mt19937 random(seed);
    std::vector<double> c(4 + random() % 20);
    for (double& bytes : c) bytes = static_cast<double>(1 + random() % 50);
    const std::vector<Id> printed = colocate(c, node, d);
    std::vector<RankTraffic> chain;  // between runs of layers on the same device
    Assignment at{printed[0]};
    for (std::size_t l = 0; l + 1 < printed.size(); ++l)
      if (printed[l + 1] != printed[l]) {
        chain.push_back({static_cast<Id>(at.size() - 1), static_cast<Id>(at.size()), c[l]});
        at.push_back(printed[l + 1]);
      }
    const auto exact = exact_assignment(chain, at.size(), d);
    ASSERT_TRUE(exact);
    EXPECT_NEAR(eq1(c, printed, d), cost_of(chain, at, d), 1e-9);
    EXPECT_GE(eq1(c, printed, d), cost_of(chain, *exact, d) * (1 - 1e-9)) << "seed " << seed;
  }
}

TEST(Apportion, ByHand) {
  // 10 samples at 3 : 1 : 1: quotas 6, 2, 2.
  EXPECT_EQ(apportion(std::vector<double>{3, 1, 1}, 10), (std::vector<int>{6, 2, 2}));
  // 8 samples at 2 : 1 : 1 : 1: quotas 3.2, 1.6, 1.6, 1.6, floors 3, 1, 1, 1. The other two samples
  // go to the first two remainders of 0.6.
  EXPECT_EQ(apportion(std::vector<double>{2, 1, 1, 1}, 8), (std::vector<int>{3, 2, 2, 1}));
  // Each share is at least 1: quotas 3.96 and 0.04.
  EXPECT_EQ(apportion(std::vector<double>{99, 1}, 4), (std::vector<int>{3, 1}));
  EXPECT_EQ(apportion(std::vector<double>{0.1, 0.1, 0.1}, 6), (std::vector<int>{2, 2, 2}));
}

TEST(Apportion, SumsAndIsWithinOneOfTheQuota) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> weights(1 + random() % 12);
    for (double& w : weights) w = 1 + static_cast<double>(random() % 100);
    const int total = static_cast<int>(weights.size() * (100 + random() % 100));
    const std::vector<int> out = apportion(weights, total);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0), total);
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_GE(out[i], 1);
      EXPECT_LT(std::abs(out[i] - weights[i] / sum * total), 1 + 1e-6);
    }
  }
}

}  // namespace
}  // namespace rehearse::planner
