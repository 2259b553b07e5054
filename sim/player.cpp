#include "sim/player.h"

#include <cassert>
#include <utility>

namespace rehearse::sim {
void Player::share_cores(std::vector<Id> cores, double core_seconds_per_byte) {
  cores_ = std::move(cores);
  core_seconds_per_byte_ = core_seconds_per_byte;
}

void Player::begin(const GroupExchange& exchange, double date, double factor, std::uint32_t owner) {
  assert(exchange.schedule->rounds() > 0);
  std::uint32_t index = 0;
  if (free_active_.empty()) {
    index = static_cast<std::uint32_t>(active_.size());
    active_.emplace_back();
  } else {
    index = free_active_.back();
    free_active_.pop_back();
  }
  const int members = exchange.schedule->members();
  Active& active = active_[index];
  active.exchange = &exchange;
  active.factor = factor * exchange.stretch;
  active.owner = owner;
  active.busy = at(members);
  active.round.assign(at(members), -1);
  active.pending.assign(at(members), 0);
  if (core_seconds_per_byte_ > 0)
    for (int member = 0; member < members; ++member) begin_work(index, member, date);
  const double first = date + exchange.extra * factor;
  if (exchange.adding > 0) {
    ++active.busy;
    network_.wake(first + exchange.adding * active.factor, tag_ | new_activity({.active = index}));
  }
  for (int member = 0; member < members; ++member) enter(index, member, first);
}

/// The member enters its next round that has hops for it. Its hops begin whose other member is
/// already in that round.
void Player::enter(std::uint32_t index, int member, double date) {
  Active& active = active_[index];
  const Exchange& exchange = *active.exchange->schedule;
  for (;;) {
    const int round = ++active.round[at(member)];
    if (round == exchange.rounds()) {
      --active.busy;
      return;
    }
    exchange.round(round, member, scratch_);
    if (scratch_.empty()) continue;
    active.pending[at(member)] = static_cast<int>(scratch_.size());
    for (const Hop& hop : scratch_) {
      const int other = hop.from == member ? hop.to : hop.from;
      if (active.round[at(other)] == round) begin_hop(index, hop, date);
    }
    return;
  }
}

std::uint32_t Player::new_activity(Activity activity) {
  if (free_hops_.empty()) {
    hops_.push_back(activity);
    return static_cast<std::uint32_t>(hops_.size() - 1);
  }
  const std::uint32_t index = free_hops_.back();
  free_hops_.pop_back();
  hops_[index] = activity;
  return index;
}

void Player::begin_hop(std::uint32_t index, const Hop& hop, double date) {
  const Active& active = active_[index];
  const Id route = group_exchanges_.route(*active.exchange, hop);
  const double latency = route == none ? 0 : hop.latencies * network_.latency(route);
  const std::uint32_t activity = new_activity({.active = index, .from = hop.from, .to = hop.to});
  network_.transfer(date + latency * active.factor, route, hop.bytes * active.factor,
                    tag_ | activity);
}

void Player::begin_work(std::uint32_t index, int member, double date) {
  Active& active = active_[index];
  const Id device = group_exchanges_.group(*active.exchange).devices[at(member)];
  const double seconds = active.exchange->schedule->traffic(member) * core_seconds_per_byte_;
  if (seconds <= 0) return;
  ++active.busy;
  network_.work(date, cores_[device], seconds * active.factor, 1,
                tag_ | new_activity({.active = index, .from = member}));
}

std::optional<std::uint32_t> Player::ended(std::uint32_t index) {
  const Activity activity = hops_[index];
  free_hops_.push_back(index);
  if (activity.to < 0) {
    --active_[activity.active].busy;
  } else {
    for (const int member : {activity.from, activity.to})
      if (--active_[activity.active].pending[at(member)] == 0)
        enter(activity.active, member, network_.now());
  }
  const Active& active = active_[activity.active];
  if (active.busy > 0) return std::nullopt;
  free_active_.push_back(activity.active);
  return active.owner;
}

}  // namespace rehearse::sim
