#include "engine/costs/network/ping_pong.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/numbers/median.h"

namespace rehearse::costs {
namespace {

/// Round-robin tournament by the circle method: device 0 stays, the others move by one seat a
/// round.
std::vector<PairRound> tournament(Id n) {
  const Id seats = n + n % 2;  // if n is odd, one device pauses each round
  std::vector<PairRound> rounds;
  for (Id r = 0; r + 1 < seats; ++r) {
    const auto at = [&](Id seat) { return seat == 0 ? 0 : 1 + (seat - 1 + r) % (seats - 1); };
    PairRound round;
    for (Id i = 0; i < seats / 2; ++i) {
      const Id a = at(i), b = at(seats - 1 - i);
      if (std::max(a, b) < n) round.emplace_back(std::min(a, b), std::max(a, b));
    }
    std::sort(round.begin(), round.end());
    rounds.push_back(std::move(round));
  }
  return rounds;
}

/// Bytes/s of each repeat: `bytes` / (seconds - small). If at most half of the repeats took longer
/// than `small` (a busy machine): `bytes` / seconds, which is a lower bound.
std::vector<double> bandwidths(const std::vector<double>& large, double small, double bytes) {
  std::vector<double> out, bounds;
  for (const double seconds : large) {
    if (seconds > small) out.push_back(bytes / (seconds - small));
    if (seconds > 0) bounds.push_back(bytes / seconds);
  }
  return 2 * out.size() > large.size() ? out : bounds;
}

}  // namespace

std::vector<PairRound> pairing_rounds(std::span<const Id> node_of) {
  std::vector<PairRound> out;
  for (const PairRound& round : tournament(static_cast<Id>(node_of.size()))) {
    std::vector<PairRound> parts;
    std::vector<std::set<Id>> nodes;  // of each part
    for (const auto& [a, b] : round) {
      std::size_t part = 0;
      while (part < parts.size() &&
             (nodes[part].contains(node_of[a]) || nodes[part].contains(node_of[b])))
        ++part;
      if (part == parts.size()) parts.emplace_back(), nodes.emplace_back();
      parts[part].emplace_back(a, b);
      nodes[part].insert({node_of[a], node_of[b]});
    }
    out.insert(out.end(), parts.begin(), parts.end());
  }
  return out;
}

RoundTrip leg_of(const PingPong& settings, int leg) {
  return {.there = leg == 1 ? settings.large : settings.small,
          .back = leg == 2 ? settings.large : settings.small};
}

std::pair<PairTime, PairTime> estimate(Id a, Id b, const PingPongTimes& times,
                                       const PingPong& settings) {
  const double small = median(times.legs[0]);
  const auto extra = static_cast<double>(settings.large - settings.small);
  PairTime there{.from = a, .to = b}, back{.from = b, .to = a};
  for (const int leg : {1, 2}) {
    PairTime& way = leg == 1 ? there : back;
    const std::vector<double> rates = bandwidths(times.legs[leg], small, extra);
    way.bandwidth = median(rates);
    way.bandwidth_spread = median_deviation(rates);
  }
  // Subtract the time of the small messages' own bytes.
  const auto bytes = static_cast<double>(settings.small);
  const double flowing = bytes / there.bandwidth + bytes / back.bandwidth;
  std::vector<double> latencies;
  for (const double seconds : times.legs[0])
    latencies.push_back(std::max(0.0, (seconds - flowing) / 2));
  there.latency = back.latency = median(latencies);
  there.latency_spread = back.latency_spread = median_deviation(latencies);
  return {there, back};
}

}  // namespace rehearse::costs
