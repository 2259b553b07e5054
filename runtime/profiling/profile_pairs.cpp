// Measures latency and bandwidth between every two ranks by ping-pongs. Rounds, legs and the
// estimator are those of engine/costs/network/ping_pong.h.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "runtime/executor/rank_memory.h"
#include "runtime/profiling/profile_parts.h"

namespace rehearse::runtime {
namespace {

/// Exchanges messages between this rank and one other.
class Partner {
 public:
  Partner(Communicator& comm, float* data, int peer) : comm_(comm), data_(data), peer_(peer) {}
  void send_first(costs::RoundTrip leg) {
    send(leg.there);
    receive(leg.back);
  }
  void send_back(costs::RoundTrip leg) {
    receive(leg.there);
    send(leg.back);
  }

 private:
  void send(std::int64_t bytes) {
    comm_.send({.data = data_, .elements = bytes / size_of(program::DType::f32)}, peer_);
  }
  void receive(std::int64_t bytes) {
    comm_.recv({.data = data_, .elements = bytes / size_of(program::DType::f32)}, peer_);
  }
  Communicator& comm_;
  float* data_;
  int peer_;
};

std::string to_text(const std::vector<costs::PairTime>& pairs) {
  std::string out;
  for (const costs::PairTime& p : pairs)
    out += fmt::format("{} {} {:.17g} {:.17g} {:.17g} {:.17g}\n", p.from, p.to, p.latency,
                       p.latency_spread, p.bandwidth, p.bandwidth_spread);
  return out;
}

void add_pairs(const std::string& text, std::vector<costs::PairTime>& pairs) {
  std::istringstream in(text);
  for (costs::PairTime p;
       in >> p.from >> p.to >> p.latency >> p.latency_spread >> p.bandwidth >> p.bandwidth_spread;)
    pairs.push_back(p);
}

}  // namespace

void profile_pairs(const cluster::Cluster& cluster, TimedStream& stream, Control& control,
                   Network& network, costs::Profile& profile) {
  const costs::PingPong settings;
  const int rank = control.environment().rank;
  std::vector<Id> nodes;
  for (const cluster::Device& device : cluster.devices()) nodes.push_back(device.node);
  const auto comm = connect_all("pairs", stream.device(), control, network);
  const at::Tensor buffer =
      device_tensor(stream.device(), {settings.large / size_of(program::DType::f32)}, at::kFloat);
  std::vector<costs::PairTime> mine;
  for (const costs::PairRound& round : costs::pairing_rounds(nodes)) {
    stream.run([&] { meet(*comm, stream.device(), buffer.data_ptr<float>()); });
    for (const auto& [a, b] : round) {
      if (std::cmp_not_equal(rank, a) && std::cmp_not_equal(rank, b)) continue;
      const bool begins = std::cmp_equal(rank, a);
      Partner partner(*comm, buffer.data_ptr<float>(), static_cast<int>(begins ? b : a));
      costs::PingPongTimes times;
      // Repeat -1 is a warm-up: the first use of a connection is slower.
      for (int repeat = -1; repeat < settings.repeats; ++repeat)
        for (int leg = 0; leg < costs::legs_per_repeat; ++leg) {
          const auto trip = [&, leg] {
            if (begins)
              partner.send_first(leg_of(settings, leg));
            else
              partner.send_back(leg_of(settings, leg));
          };
          if (repeat < 0)
            stream.run(trip);
          else
            stream.time(times.legs[leg], trip);
        }
      stream.finish();
      if (!begins) continue;
      const auto [there, back] = estimate(a, b, times, settings);
      mine.push_back(there);
      mine.push_back(back);
    }
  }
  stream.finish();
  for (const std::string& one : control.gather("pairs", to_text(mine)))
    add_pairs(one, profile.pairs);
  std::sort(profile.pairs.begin(), profile.pairs.end(),
            [](const costs::PairTime& a, const costs::PairTime& b) {
              return std::pair(a.from, a.to) < std::pair(b.from, b.to);
            });
  profile.cluster = cluster.name();
  profile.cluster_hash = cluster.hash();
}

}  // namespace rehearse::runtime
