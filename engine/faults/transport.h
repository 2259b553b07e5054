// What a transport makes of a lossy link and of a link that is down for a while. A connection is
// that of one pair of devices over one path.
//
//   transport   where                                  lost packets             a link was down
//   tcp         a link of the path states tcp_mtu      Mathis et al. 1997       RTO, doubled
//   rdma        other paths between nodes              go-back-N                ACK timeout
//   bus         paths within a node (NVLink, PCIe)     go-back-N                at once
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "engine/base/id.h"
#include "engine/cluster/cluster.h"

namespace rehearse::faults {

enum class Transport : std::uint8_t { bus, rdma, tcp };

/// A path between two devices, as a transport sees it.
struct Connection {
  Transport transport = Transport::bus;
  double bandwidth = 0;   // of its slowest link, bytes per second of payload
  double round_trip = 0;  // seconds: both ways' latency and one packet
  double packet = 0;      // bytes of payload
};
/// `links`: the directed links from one device to the other; `wire`: their latency in all.
Connection connection_of(const cluster::Cluster& cluster, Id from_device, Id to_device,
                         std::span<const Id> links, double wire);

/// Bytes per second that a connection carries when this part of its packets (below 1) is lost.
///   tcp         min(B (1 - p), sqrt(3/2) MSS / (RTT sqrt(p))): Mathis et al. 1997
///   rdma, bus   B (1 - p) / (1 + p (W - 1)): a loss sends the W = B RTT / packet packets that are
///               in flight again
double rate_with_loss(const Connection& connection, double lost);

/// When a connection whose packets are lost from `since` on tries again, at or after `up`, when the
/// path is good again: a timeout that was not yet over must pass.
///   tcp    0.2 s after `since`, then after twice the time, up to 120 s (RFC 6298, Linux)
///   rdma   each 4.3 s: 4.096 us x 2^20, NCCL's default
///   bus    at once
double resumes(Transport transport, double since, double up);

/// Seconds after which the transport itself gives a connection up. rdma: seven retries, NCCL's
/// default. Nothing: never, as the job's own timeout is shorter.
std::optional<double> gives_up_after(Transport transport);

}  // namespace rehearse::faults
