#include "engine/faults/transport.h"

#include <algorithm>
#include <cmath>

namespace rehearse::faults {
namespace {

constexpr double first_timeout = 0.2, longest_timeout = 120;  // seconds: TCP_RTO_MIN, TCP_RTO_MAX
constexpr double headers = 52;                                // of IP and TCP, with time stamps
constexpr double largest_packet = 4096;                       // RDMA's largest path MTU, in bytes
constexpr double ack_timeout = 4.096e-6 * (1 << 20);          // NCCL_IB_TIMEOUT = 20
constexpr int retries = 7;                                    // NCCL_IB_RETRY_CNT

}  // namespace

Connection connection_of(const cluster::Cluster& cluster, Id from_device, Id to_device,
                         std::span<const Id> links, double wire) {
  Connection out{.packet = largest_packet};
  const std::span<const cluster::Device> devices = cluster.devices();
  if (devices[from_device].node != devices[to_device].node) out.transport = Transport::rdma;
  for (const Id link : links) {
    const cluster::Link& l = cluster.links()[link];
    out.bandwidth =
        out.bandwidth > 0 ? std::min(out.bandwidth, l.bandwidth.value) : l.bandwidth.value;
    if (l.tcp_mtu == 0) continue;
    const double segment = l.tcp_mtu - headers;
    out.packet = out.transport == Transport::tcp ? std::min(out.packet, segment) : segment;
    out.transport = Transport::tcp;
  }
  out.round_trip = 2 * wire + out.packet / out.bandwidth;
  return out;
}

double rate_with_loss(const Connection& c, double lost) {
  const double good = c.bandwidth * (1 - lost);
  if (lost <= 0) return c.bandwidth;
  if (c.transport == Transport::tcp)
    return std::min(good, std::sqrt(1.5) * c.packet / (c.round_trip * std::sqrt(lost)));
  const double window = c.bandwidth * c.round_trip / c.packet;  // packets in flight
  return good / (1 + lost * (window - 1));
}

double resumes(Transport transport, double since, double up) {
  if (transport == Transport::bus || up <= since) return up;
  if (transport == Transport::rdma)
    return since + ack_timeout * std::ceil((up - since) / ack_timeout);
  double again = since;
  for (double timeout = first_timeout; again < up; timeout = std::min(2 * timeout, longest_timeout))
    again += timeout;
  return again;
}

std::optional<double> gives_up_after(Transport transport) {
  if (transport != Transport::rdma) return std::nullopt;
  return (retries + 1) * ack_timeout;
}

}  // namespace rehearse::faults
