#include "sim/exchange.h"

#include <map>
#include <utility>

namespace rehearse::sim {
namespace {

/// What the joined rounds of one pair carry.
struct Sum {
  double bytes = 0;
  int rounds = 0;
};
/// Joined rounds are divided again into so many parts. A member that waits for a slow transfer
/// delays the next part of its neighbours, as it delays their next round.
constexpr int most_parts = 4;

using Pairs = std::map<std::pair<int, int>, Sum>;

bool same_pairs(const Pairs& a, const Pairs& b) {
  if (a.size() != b.size()) return false;
  for (auto i = a.begin(), k = b.begin(); i != a.end(); ++i, ++k)
    if (i->first != k->first) return false;
  return true;
}

}  // namespace

Exchange::Exchange(double bytes)
    : traffic_{bytes, bytes}, hops_{{{.from = 0, .to = 1, .bytes = bytes}}}, mine_{{0}, {0}} {}

Exchange::Exchange(std::unique_ptr<const collectives::Schedule> schedule,
                   std::int64_t element_bytes)
    : members_(schedule->members()),
      rounds_(schedule->rounds()),
      schedule_(std::move(schedule)),
      element_bytes_(static_cast<double>(element_bytes)) {
  count();
}

void Exchange::count() {
  traffic_.assign(static_cast<std::size_t>(members_), 0);
  std::vector<Hop> hops;
  for (int r = 0; r < rounds_; ++r) {
    round(r, -1, hops);
    for (const Hop& hop : hops)
      for (const int member : {hop.from, hop.to})
        if (hop.sum == none) traffic_[static_cast<std::size_t>(member)] += hop.bytes;
  }
}

Exchange Exchange::joined(const collectives::Schedule& schedule, std::int64_t element_bytes) {
  std::vector<Pairs> rounds;
  std::vector<collectives::Transfer> transfers;
  for (const collectives::Schedule::Repeat repeat : schedule.distinct()) {
    transfers.clear();
    schedule.round(repeat.round, -1, transfers);
    Pairs round;
    for (const collectives::Transfer& t : transfers) {
      Sum& sum = round[{t.from, t.to}];
      sum.bytes += static_cast<double>((t.end - t.begin) * element_bytes * repeat.times);
      sum.rounds = repeat.times;
    }
    if (!rounds.empty() && same_pairs(rounds.back(), round)) {
      for (auto& [pair, sum] : rounds.back()) {
        sum.bytes += round[pair].bytes;
        sum.rounds += round[pair].rounds;
      }
    } else if (!round.empty()) {
      rounds.push_back(std::move(round));
    }
  }
  std::vector<std::vector<Hop>> hops;
  for (const Pairs& round : rounds) {
    int parts = most_parts;
    for (const auto& [pair, sum] : round) parts = std::min(parts, sum.rounds);
    for (int part = 0; part < parts; ++part) {
      hops.emplace_back();
      for (const auto& [pair, sum] : round)
        hops.back().push_back(
            {.from = pair.first,
             .to = pair.second,
             .bytes = sum.bytes / parts,
             .latencies = sum.rounds * (part + 1) / parts - sum.rounds * part / parts});
    }
  }
  return Exchange(schedule.members(), std::move(hops));
}

Exchange Exchange::of_library(const costs::LibraryCollective& collective, int members) {
  std::vector<Hop> hops;
  for (const costs::Flow& flow : collective.flows)
    hops.push_back({.from = flow.from,
                    .to = flow.to,
                    .bytes = flow.bytes * collective.occupancy,
                    .latencies = 0});
  for (Id sum = 0; sum < collective.sums.size(); ++sum)
    hops.push_back({.from = 0,
                    .to = 1,
                    .bytes = collective.sums[sum].bytes * collective.occupancy,
                    .latencies = 0,
                    .sum = sum});
  Exchange out(members, {std::move(hops)});
  out.sums_ = collective.sums;
  return out;
}

Exchange::Exchange(int members, std::vector<std::vector<Hop>> hops)
    : members_(members),
      rounds_(static_cast<int>(hops.size())),
      hops_(std::move(hops)),
      mine_(hops_.size() * static_cast<std::size_t>(members)) {
  for (std::size_t r = 0; r < hops_.size(); ++r)
    for (std::size_t i = 0; i < hops_[r].size(); ++i)
      for (const int member : {hops_[r][i].from, hops_[r][i].to})
        mine_[r * static_cast<std::size_t>(members) + static_cast<std::size_t>(member)].push_back(
            static_cast<std::uint32_t>(i));
  count();
}

void Exchange::round(int r, int member, std::vector<Hop>& out) const {
  out.clear();
  if (schedule_) {
    thread_local std::vector<collectives::Transfer> transfers;
    transfers.clear();
    schedule_->round(r, member, transfers);
    // Several intervals between one pair are one message: one flow, with one share of its links.
    thread_local std::map<std::pair<int, int>, std::size_t> hop_of;
    hop_of.clear();
    for (const collectives::Transfer& t : transfers) {
      const auto [it, fresh] = hop_of.try_emplace({t.from, t.to}, out.size());
      if (fresh) out.push_back({.from = t.from, .to = t.to});
      out[it->second].bytes += static_cast<double>(t.end - t.begin) * element_bytes_;
    }
    return;
  }
  const std::vector<Hop>& hops = hops_[static_cast<std::size_t>(r)];
  if (member < 0) {
    out = hops;
    return;
  }
  const auto at = static_cast<std::size_t>(r) * static_cast<std::size_t>(members_) +
                  static_cast<std::size_t>(member);
  for (const std::uint32_t index : mine_[at]) out.push_back(hops[index]);
}

}  // namespace rehearse::sim
