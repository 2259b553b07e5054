// Tests of transports: throughput under loss against the published formulas, and when a connection
// tries again.
#include "engine/faults/transport.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rehearse::faults {
namespace {

/// 1.25 GB/s and 400 us there and back, without the packet itself.
Connection connection(Transport transport, double packet) {
  return {.transport = transport, .bandwidth = 1.25e9, .round_trip = 400e-6, .packet = packet};
}

TEST(Transport, WithoutLossNothingIsLost) {
  for (const Transport t : {Transport::tcp, Transport::rdma, Transport::bus})
    EXPECT_EQ(rate_with_loss(connection(t, 1448), 0), 1.25e9);
}

TEST(Transport, TcpIsBoundByMathis) {
  // 1,460 bytes, 100 ms, 2%: the square root of 3/2 by 14,600 bytes/s by the root of 50.
  Connection far = connection(Transport::tcp, 1460);
  far.round_trip = 0.1;
  EXPECT_NEAR(rate_with_loss(far, 0.02), 1.224744871 * 14600 * 7.071067812, 1e-3);
  // Where the bound is above the bandwidth, lost packets are sent twice.
  Connection near = connection(Transport::tcp, 8948);
  near.round_trip = 1e-6;
  EXPECT_DOUBLE_EQ(rate_with_loss(near, 0.01), 1.25e9 * 0.99);
}

TEST(Transport, RdmaSendsAgainWhatIsInFlight) {
  const Connection c = connection(Transport::rdma, 4096);
  const double window = 1.25e9 * 400e-6 / 4096;
  EXPECT_NEAR(window, 122.07, 0.01);
  EXPECT_DOUBLE_EQ(rate_with_loss(c, 0.01), 1.25e9 * 0.99 / (1 + 0.01 * (window - 1)));
  // A window of one packet: stop and wait.
  Connection one = c;
  one.round_trip = 4096 / 1.25e9;
  EXPECT_NEAR(rate_with_loss(one, 0.25), 1.25e9 * 0.75, 1);
}

TEST(Transport, ConnectionsTryAgainAfterTheirTimeouts) {
  EXPECT_EQ(resumes(Transport::bus, 1, 5), 5);
  EXPECT_NEAR(resumes(Transport::tcp, 1, 1.1), 1.2, 1e-12);
  EXPECT_NEAR(resumes(Transport::tcp, 1, 1.5), 1.6, 1e-12);
  EXPECT_NEAR(resumes(Transport::tcp, 1, 5), 1 + 0.2 * 31, 1e-12);
  // After ten minutes the timeout no longer grows.
  EXPECT_NEAR(resumes(Transport::tcp, 0, 600), 0.2 * 1023 + 4 * 120, 1e-9);
  const double ack = 4.096e-6 * 1048576;
  EXPECT_NEAR(resumes(Transport::rdma, 2, 3), 2 + ack, 1e-12);
  EXPECT_NEAR(resumes(Transport::rdma, 2, 2 + 2.5 * ack), 2 + 3 * ack, 1e-12);
  EXPECT_EQ(resumes(Transport::rdma, 2, 2), 2);
  EXPECT_NEAR(gives_up_after(Transport::rdma).value_or(0), 8 * ack, 1e-9);
  EXPECT_FALSE(gives_up_after(Transport::tcp));
}

TEST(Transport, OfAPath) {
  cluster::Cluster cluster;
  const Id kind = cluster.add_kind({.name = "device"});
  const Id a = cluster.add_device("node0/gpu0", kind, 0),
           b = cluster.add_device("node0/gpu1", kind, 0);
  const Id c = cluster.add_device("node1/gpu0", kind, 1);
  const Id bus = cluster.connect(cluster.vertex_of(a), cluster.vertex_of(b), "",
                                 BytesPerSecond(4e9), Seconds(1e-6));
  const Id wire = cluster.connect(cluster.vertex_of(b), cluster.vertex_of(c), "",
                                  BytesPerSecond(1e9), Seconds(5e-6));
  const Id tcp = cluster.connect(cluster.vertex_of(a), cluster.vertex_of(c), "",
                                 BytesPerSecond(1e9), Seconds(5e-6), false, 1500);
  const auto of = [&](Id from, Id to, std::vector<Id> links, double latency) {
    return connection_of(cluster, from, to, links, latency);
  };
  EXPECT_EQ(of(a, b, {bus}, 1e-6).transport, Transport::bus);
  const Connection far = of(a, c, {bus, wire}, 6e-6);
  EXPECT_EQ(far.transport, Transport::rdma);
  EXPECT_EQ(far.bandwidth, 1e9);
  EXPECT_NEAR(far.round_trip, 12e-6 + 4096 / 1e9, 1e-15);
  EXPECT_EQ(of(a, c, {tcp}, 5e-6).transport, Transport::tcp);
  EXPECT_EQ(of(a, c, {tcp}, 5e-6).packet, 1448);
}

}  // namespace
}  // namespace rehearse::faults
