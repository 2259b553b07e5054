// Tests of the Topology Profiler on simulated clusters: it estimates the latency and bandwidth of
// every path, pairs that share a link measure their share of it, and jitter changes medians little.
#include "sim/ping_pong.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/sim/isolated.h"
#include "tests/sim/runs.h"

namespace rehearse::sim {
namespace {

PingPongRun play(const cluster::Cluster& cluster, const std::vector<costs::PairRound>& rounds,
                 const cluster::Disturbance& disturbance = {}) {
  const auto flat = isolated([&] {
    const cluster::Disturber disturber(disturbance, static_cast<int>(cluster.devices().size()));
    const PingPongRun run =
        play_ping_pong(cluster, rounds, disturber, link_slowdowns(disturbance, cluster));
    std::vector<double> out = {run.seconds};
    for (const costs::PairTime& p : run.pairs)
      out.insert(out.end(), {static_cast<double>(p.from), static_cast<double>(p.to), p.latency,
                             p.latency_spread, p.bandwidth, p.bandwidth_spread});
    return out;
  });
  PingPongRun run{.seconds = flat[0]};
  for (std::size_t i = 1; i < flat.size(); i += 6)
    run.pairs.push_back({static_cast<Id>(flat[i]), static_cast<Id>(flat[i + 1]), flat[i + 2],
                         flat[i + 3], flat[i + 4], flat[i + 5]});
  return run;
}

std::vector<costs::PairRound> rounds_of(const cluster::Cluster& cluster) {
  std::vector<Id> nodes;
  for (const cluster::Device& device : cluster.devices()) nodes.push_back(device.node);
  return costs::pairing_rounds(nodes);
}

class PingPongOn : public testing::TestWithParam<std::string> {};

TEST_P(PingPongOn, EstimatesEveryPath) {
  const cluster::Cluster cluster = cluster::load_cluster(GetParam());
  const auto n = static_cast<Id>(cluster.devices().size());
  const PingPongRun run = play(cluster, rounds_of(cluster));
  ASSERT_EQ(run.pairs.size(), std::size_t{n} * (n - 1));
  auto at = run.pairs.begin();
  for (Id a = 0; a < n; ++a)
    for (Id b = 0; b < n; ++b) {
      if (a == b) continue;
      ASSERT_EQ(at->from, a);
      ASSERT_EQ(at->to, b);
      // The profiler assigns half of a round trip's latency to each direction.
      const double latency = (cluster.latency(a, b).value + cluster.latency(b, a).value) / 2;
      EXPECT_NEAR(at->latency, latency, 1e-3 * latency) << a << " " << b;
      const double bandwidth = cluster.bandwidth(a, b).value;
      EXPECT_NEAR(at->bandwidth, bandwidth, 1e-3 * bandwidth) << a << " " << b;
      EXPECT_LE(at->bandwidth_spread, 1e-6 * bandwidth);
      ++at;
    }
  // These clusters are symmetric, so the estimates are too.
  for (const costs::PairTime& p : run.pairs) {
    const auto back =
        std::find_if(run.pairs.begin(), run.pairs.end(),
                     [&](const costs::PairTime& q) { return q.from == p.to && q.to == p.from; });
    EXPECT_NEAR(p.bandwidth, back->bandwidth, 1e-6 * p.bandwidth);
  }
  EXPECT_LT(run.seconds, 5);  // simulated time, for at most 32 ranks
}
INSTANTIATE_TEST_SUITE_P(Platforms, PingPongOn,
                         testing::Values("paper", "paper-homogeneous", "dgx1", "dgx-a100:4",
                                         "dgx-h100:2", "this-machine:4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(PingPong, SeesSlowLinksInTheirDirection) {
  cluster::Disturbance slow;
  slow.slow_links = {{.link = "wire0", .factor = 4}};
  const PingPongRun run = play(switched(3), rounds_of(switched(3)), slow);
  for (const costs::PairTime& p : run.pairs)
    EXPECT_NEAR(p.bandwidth, p.from == 0 ? 12.5e9 / 4 : 12.5e9, 1e7) << p.from << " " << p.to;
}

TEST(PingPong, PairsThatMeetOnALinkMeasureTheirShare) {
  // Two devices behind the one NIC of node 0, one device on each of two more nodes.
  cluster::Cluster cluster;
  const Id kind = cluster.add_kind({.name = "gpu"});
  const Id nic = cluster.add_vertex("nic", 0), fabric = cluster.add_vertex("fabric");
  for (Id d = 0; d < 4; ++d) {
    cluster.add_device("gpu" + std::to_string(d), kind, d < 2 ? 0 : d - 1);
    cluster.connect(cluster.vertex_of(d), d < 2 ? nic : fabric, "wire" + std::to_string(d),
                    BytesPerSecond(10e9), Seconds(1e-6));
  }
  cluster.connect(nic, fabric, "cable", BytesPerSecond(1e9), Seconds(1e-6));
  const auto bandwidth = [](const PingPongRun& run, Id from) {
    for (const costs::PairTime& p : run.pairs)
      if (p.from == from && p.to == from + 2) return p.bandwidth;
    return 0.0;
  };
  // In one round, 0 -> 2 and 1 -> 3 share the cable. pairing_rounds puts them into different
  // rounds, because both use at node 0.
  const PingPongRun together = play(cluster, {{{0, 2}, {1, 3}}});
  const PingPongRun apart = play(cluster, rounds_of(cluster));
  for (const Id from : {0U, 1U}) {
    EXPECT_NEAR(bandwidth(together, from), 0.5e9, 1e6);
    EXPECT_NEAR(bandwidth(apart, from), 1e9, 1e6);
  }
}

TEST(PingPong, JitterMovesMediansByLittle) {
  const cluster::Cluster cluster = cluster::load_cluster("paper");
  cluster::Disturbance jitter;
  jitter.link_sigma = 0.1;
  const PingPongRun run = play(cluster, rounds_of(cluster), jitter);
  // The median of 9 draws with a spread of 10% is typically 4% off, and for some of the 992 pairs
  // four times as much. On average the medians are off by the ratio of the log-normal's median to
  // its mean, which is exp(-0.1^2 / 2).
  double sum = 0, spread = 0;
  for (const costs::PairTime& p : run.pairs) {
    const double ratio = cluster.bandwidth(p.from, p.to).value / p.bandwidth;
    EXPECT_NEAR(ratio, 1, 0.25) << p.from << " " << p.to;
    sum += ratio;
    spread += p.bandwidth_spread / p.bandwidth;
    const double latency = cluster.latency(p.from, p.to).value;
    EXPECT_NEAR(p.latency, latency, 0.25 * latency);
  }
  const auto n = static_cast<double>(run.pairs.size());
  EXPECT_NEAR(sum / n, std::exp(-0.005), 0.01);
  // The median absolute deviation of a log-normal is 0.674 sigma; of nine draws it is a little
  // less.
  EXPECT_NEAR(spread / n, 0.06, 0.02);
  // The same seed gives the same file.
  const PingPongRun again = play(cluster, rounds_of(cluster), jitter);
  EXPECT_EQ(again.pairs[5].bandwidth, run.pairs[5].bandwidth);
}

}  // namespace
}  // namespace rehearse::sim
