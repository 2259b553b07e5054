// Times ping-pongs between every two ranks: the rounds, legs and estimator of engine/costs/ping_pong.h.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include "runtime/profiling/profile_parts.h"

namespace rehearse {
namespace {

/// Message after message between this rank and one other.
class Partner {
 public:
  Partner(Communicator& comm, float* data, int peer) : comm_(comm), data_(data), peer_(peer) {}
  void begin(Leg leg) {
    send(leg.there);
    receive(leg.back);
  }
  void answer(Leg leg) {
    receive(leg.there);
    send(leg.back);
  }

 private:
  void send(std::int64_t bytes) {
    comm_.send({.data = data_, .elements = bytes / size_of(DType::f32)}, peer_);
  }
  void receive(std::int64_t bytes) {
    comm_.recv({.data = data_, .elements = bytes / size_of(DType::f32)}, peer_);
  }
  Communicator& comm_;
  float* data_;
  int peer_;
};

std::string to_text(const std::vector<PairTime>& pairs) {
  std::string out;
  for (const PairTime& p : pairs)
    out += fmt::format("{} {} {:.17g} {:.17g} {:.17g} {:.17g}\n", p.from, p.to, p.latency,
                       p.latency_spread, p.bandwidth, p.bandwidth_spread);
  return out;
}

void add_pairs(const std::string& text, std::vector<PairTime>& pairs) {
  std::istringstream in(text);
  for (PairTime p;
       in >> p.from >> p.to >> p.latency >> p.latency_spread >> p.bandwidth >> p.bandwidth_spread;)
    pairs.push_back(p);
}

}  // namespace

void profile_pairs(const Cluster& cluster, Control& control, Network& network, Profile& profile) {
  const PingPong settings;
  const int rank = control.environment().rank;
  std::vector<Id> ranks(static_cast<std::size_t>(control.environment().world_size)), nodes;
  std::iota(ranks.begin(), ranks.end(), Id{0});
  for (const Device& device : cluster.devices()) nodes.push_back(device.node);
  const auto comm = network.communicator("pairs", ranks);
  const at::Tensor buffer = at::zeros({settings.large / size_of(DType::f32)}, at::kFloat);
  std::vector<PairTime> mine;
  for (const PairRound& round : pairing_rounds(nodes)) {
    comm->barrier();
    for (const auto& [a, b] : round) {
      if (std::cmp_not_equal(rank, a) && std::cmp_not_equal(rank, b)) continue;
      const bool begins = std::cmp_equal(rank, a);
      Partner partner(*comm, buffer.data_ptr<float>(), static_cast<int>(begins ? b : a));
      PingPongTimes times;
      // Once for nothing: the first use of a connection is not like the others.
      for (int repeat = -1; repeat < settings.repeats; ++repeat)
        for (int leg = 0; leg < legs_per_repeat; ++leg) {
          const double began = seconds_now();
          if (begins)
            partner.begin(leg_of(settings, leg));
          else
            partner.answer(leg_of(settings, leg));
          if (repeat >= 0) times.legs[leg].push_back(seconds_now() - began);
        }
      if (!begins) continue;
      const auto [there, back] = estimate(a, b, times, settings);
      mine.push_back(there);
      mine.push_back(back);
    }
  }
  for (const std::string& one : control.gather("pairs", to_text(mine)))
    add_pairs(one, profile.pairs);
  std::sort(profile.pairs.begin(), profile.pairs.end(), [](const PairTime& a, const PairTime& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  profile.cluster = cluster.name();
  profile.cluster_hash = cluster.hash();
}

}  // namespace rehearse
