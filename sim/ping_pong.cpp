#include "sim/ping_pong.h"

#include <algorithm>
#include <cstdint>

#include "sim/network.h"

namespace rehearse::sim {
namespace {

class PingPongSimulation {
 public:
  PingPongSimulation(const cluster::Cluster& cluster, std::span<const costs::PairRound> rounds,
                     const cluster::Disturber& disturber, std::span<const double> slow,
                     const costs::PingPong& settings)
      : rounds_(rounds), disturber_(disturber), settings_(settings), network_(cluster, slow) {
    // All routes must exist before the simulation starts.
    for (const costs::PairRound& round : rounds)
      for (const auto& [a, b] : round)
        for (int leg = 0; leg < costs::legs_per_repeat; ++leg) {
          const costs::RoundTrip both = leg_of(settings_, leg);
          network_.route(a, b, static_cast<double>(both.there));
          network_.route(b, a, static_cast<double>(both.back));
        }
  }

  PingPongRun play() {
    begin_round(0);
    network_.run([this](SharedNetwork::Token token) { arrived(token); });
    std::sort(run_.pairs.begin(), run_.pairs.end(),
              [](const costs::PairTime& a, const costs::PairTime& b) {
                return std::pair(a.from, a.to) < std::pair(b.from, b.to);
              });
    run_.seconds = last_;
    return std::move(run_);
  }

 private:
  /// A ping-pong between devices a and b that is under way: message `hop` (0: there, 1: back) of
  /// leg `leg` of repeat `repeat`.
  struct RunningPair {
    Id a = 0, b = 0;
    int repeat = 0, leg = 0, hop = 0;
    double began = 0;
    costs::PingPongTimes times = {};
  };

  void begin_round(double date) {
    rallies_.clear();
    if (round_ == rounds_.size()) return;
    for (const auto& [a, b] : rounds_[round_]) rallies_.push_back({.a = a, .b = b, .began = date});
    under_way_ = rallies_.size();
    for (std::size_t m = 0; m < rallies_.size(); ++m) send(m, date);
  }

  void send(std::size_t index, double date) {
    const RunningPair& m = rallies_[index];
    const costs::RoundTrip leg = leg_of(settings_, m.leg);
    const Id from = m.hop == 0 ? m.a : m.b, to = m.hop == 0 ? m.b : m.a;
    // Jitter has a key of (rank, step, op), as in every run; here step is the repeat.
    const Id op =
        static_cast<Id>((round_ * costs::legs_per_repeat + static_cast<std::size_t>(m.leg)) * 2) +
        static_cast<Id>(m.hop);
    const double factor = disturber_.link_factor(std::min(m.a, m.b), m.repeat, op);
    const auto bytes = static_cast<double>(m.hop == 0 ? leg.there : leg.back);
    const Id route = network_.route(from, to, bytes);
    network_.transfer(date + factor * network_.latency(route), route, factor * bytes, index);
  }

  void arrived(std::size_t index) {
    RunningPair& m = rallies_[index];
    const double now = network_.now();
    last_ = now;
    if (m.hop == 0) {
      m.hop = 1;
      return send(index, now);
    }
    m.times.legs[m.leg].push_back(now - m.began);
    m.hop = 0;
    m.began = now;
    if (++m.leg == costs::legs_per_repeat) m.leg = 0, ++m.repeat;
    if (m.repeat < settings_.repeats) return send(index, now);
    const auto [there, back] = estimate(m.a, m.b, m.times, settings_);
    run_.pairs.push_back(there);
    run_.pairs.push_back(back);
    if (--under_way_ == 0) {
      ++round_;
      begin_round(now);
    }
  }

  std::span<const costs::PairRound> rounds_;
  const cluster::Disturber& disturber_;
  const costs::PingPong& settings_;
  SharedNetwork network_;
  std::size_t round_ = 0, under_way_ = 0;
  std::vector<RunningPair> rallies_ = {};
  double last_ = 0;
  PingPongRun run_ = {};
};

}  // namespace

PingPongRun play_ping_pong(const cluster::Cluster& cluster,
                           std::span<const costs::PairRound> rounds,
                           const cluster::Disturber& disturber, std::span<const double> slow,
                           const costs::PingPong& settings) {
  return PingPongSimulation(cluster, rounds, disturber, slow, settings).play();
}

}  // namespace rehearse::sim
