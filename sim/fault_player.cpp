#include "sim/fault_player.h"

#include <algorithm>
#include <set>
#include <utility>

namespace rehearse::sim {
namespace {

using execution::FaultReplay;
using faults::Kind;

bool of_links(Kind kind) {
  const faults::Targets targets = faults::takes(kind);
  return targets.link || targets.nodes;
}

}  // namespace

bool changes_links(const faults::Trace& trace) {
  return std::any_of(trace.events.begin(), trace.events.end(),
                     [](const faults::Event& e) { return of_links(e.kind); });
}
bool loses_packets(const faults::Trace& trace) {
  return std::any_of(trace.events.begin(), trace.events.end(),
                     [](const faults::Event& e) { return e.kind == Kind::packet_loss; });
}

FaultPlayer::FaultPlayer(FaultReplay& replay, const cluster::Cluster& cluster,
                         std::span<const Id> rank_to_device, SharedNetwork& network,
                         std::function<void(double date)> wake)
    : replay_(replay),
      cluster_(cluster),
      rank_to_device_(rank_to_device),
      network_(network),
      wake_(std::move(wake)),
      broken_(network.routes()) {
  replay_.on_strike = [this](std::size_t event, double now) {
    strike(event, now);
    arm();
  };
  network_.tell_of_held([this](Id route) { stands(route, network_.now()); });
}

void FaultPlayer::arm() {
  const double date = due_.empty() ? replay_.next() : std::min(replay_.next(), due_.begin()->first);
  if (date >= armed_) return;
  armed_ = date;
  wake_(date);
}

void FaultPlayer::at(double date, std::function<void(double)> action) {
  due_.emplace(date, std::move(action));
  arm();
}

bool FaultPlayer::must_wait(Id rank, const program::Op& op, link::Ready& ready,
                            SharedNetwork::Token token) {
  const double now = network_.now();
  const double free = replay_.begins(rank, op, ready.step, now);
  if (free <= now || channel_of(op.work) == none) return false;
  ready.since = free;
  if (free < FaultReplay::never) network_.wake(free, token);
  return true;
}

bool FaultPlayer::goes_on(double end, double now, SharedNetwork::Token token) {
  if (end <= now * (1 + 1e-12)) return false;
  if (end < FaultReplay::never) network_.wake(end, token);
  return true;
}

void FaultPlayer::reach(double now) {
  armed_ = FaultReplay::never;
  // An effect ends before another event strikes at the same time.
  while (!due_.empty() && due_.begin()->first <= now) {
    const auto action = std::move(due_.begin()->second);
    due_.erase(due_.begin());
    action(now);
  }
  replay_.reach(now);
  arm();
}

void FaultPlayer::release_all() {
  due_.clear();
  network_.tell_of_held(nullptr);
  for (const Hold& held : std::exchange(holds_, {}))
    for (const Id route : held.routes) network_.release(route);
}

Id FaultPlayer::link_named(const std::string& name) const {
  for (Id link = 0; link < cluster_.links().size(); ++link)
    if (cluster_.links()[link].name == name) return link;
  return none;
}

template <class Chosen>
std::vector<Id> FaultPlayer::routes_where(Chosen chosen) const {
  std::vector<Id> out;
  for (Id route = 0; route < network_.routes(); ++route)
    if (chosen(route)) out.push_back(route);
  return out;
}

void FaultPlayer::strike(std::size_t event, double now) {
  const faults::Event& e = replay_.trace().events[event];
  const double until = replay_.outcomes()[event].until.value_or(FaultReplay::never);
  const auto over = [&](Id link) {
    return [this, link](Id route) {
      const std::span<const Id> links = network_.links(route);
      return std::find(links.begin(), links.end(), link) != links.end();
    };
  };
  const Id link = e.link.empty() ? none : link_named(e.link);
  const bool gone = e.kind == Kind::packet_loss && e.factor >= 1;
  if (e.kind == Kind::link_up) return link_up(link, now);
  if (e.kind == Kind::link_down || gone) {
    hold({.event = event, .routes = routes_where(over(link)), .link = link, .path = true}, now);
  } else if (e.kind == Kind::link_slow || e.kind == Kind::packet_loss) {
    const bool slow = e.kind == Kind::link_slow;
    degraded_.push_back({.event = event,
                         .link = link,
                         .factor = slow ? std::max(1.0, e.factor) : 1,
                         .lost = slow ? 0 : e.factor});
    degrade(link);
  } else if (e.kind == Kind::partition) {
    const std::set<Id> side(e.nodes.begin(), e.nodes.end());
    const auto inside = [&](Id device) { return side.contains(cluster_.devices()[device].node); };
    hold({.event = event,
          .routes = routes_where([&](Id route) {
            const auto devices = network_.devices(route);
            return std::ranges::any_of(devices, inside) && !std::ranges::all_of(devices, inside);
          }),
          .path = true},
         now);
  } else if (const std::vector<Id> ranks = replay_.ranks_of(e);
             e.kind != Kind::slows && !ranks.empty()) {
    std::set<Id> devices;
    for (const Id rank : ranks) devices.insert(rank_to_device_[rank]);
    hold({.event = event, .routes = routes_where([&](Id route) {
                            return std::ranges::any_of(network_.devices(route), [&](Id device) {
                              return devices.contains(device);
                            });
                          })},
         now);
  } else {
    return;
  }
  if (until < FaultReplay::never)
    at(until, [this, event](double then) { end_effect(event, then); });
}

void FaultPlayer::hold(Hold what, double now) {
  for (const Id route : what.routes) {
    const bool flows = network_.flows_on(route) > 0;
    network_.hold(route);
    if (!what.path) continue;
    Broken& broken = broken_[route];
    broken.event = what.event;
    if (++broken.holds == 1) broken.stands = false;
    // A flow that SimGrid did not carry before it was held counts now.
    if (flows || network_.flows_on(route) > 0) stands(route, now);
  }
  holds_.push_back(std::move(what));
}

/// The effect of an event ends.
void FaultPlayer::end_effect(std::size_t event, double now) {
  for (std::size_t i = 0; i < degraded_.size(); ++i) {
    if (degraded_[i].event != event) continue;
    const Id link = degraded_[i].link;
    degraded_.erase(degraded_.begin() + static_cast<std::ptrdiff_t>(i));
    return degrade(link);
  }
  for (std::size_t i = 0; i < holds_.size(); ++i) {
    if (holds_[i].event != event) continue;
    const Hold held = std::move(holds_[i]);
    holds_.erase(holds_.begin() + static_cast<std::ptrdiff_t>(i));
    double latest = now;
    for (const Id route : held.routes) {
      double again = now;
      if (held.path && broken_[route].stands)
        again = faults::resumes(connection(route).transport, broken_[route].since, now);
      latest = std::max(latest, again);
      const bool path = held.path;
      const auto go_on = [this, route, path](double) {
        if (path) --broken_[route].holds;
        network_.release(route);
      };
      if (again > now)
        at(again, go_on);
      else
        go_on(now);
    }
    return replay_.lasts(event, latest);
  }
}

void FaultPlayer::link_up(Id link, double now) {
  std::vector<std::size_t> ended;
  for (const Hold& held : holds_)
    if (held.link == link) ended.push_back(held.event);
  for (const std::size_t event : ended) end_effect(event, now);
}

/// A flow stands still on a broken path. The run notices it if that lasts.
void FaultPlayer::stands(Id route, double now) {
  Broken& broken = broken_[route];
  if (broken.holds == 0 || broken.stands) return;
  broken.stands = true;
  broken.since = now;
  at(now + patience(route, broken.event), [this, route](double then) { check(route, then); });
}

void FaultPlayer::check(Id route, double now) {
  const Broken& broken = broken_[route];
  if (broken.holds == 0 || !broken.stands || network_.flows_on(route) == 0) return;
  const double patience = this->patience(route, broken.event);
  // The flow moved and stopped again; the check of the newer stop decides.
  if (now - broken.since < patience * (1 - 1e-9)) return;
  replay_.stop(broken.event, now);
}

/// How long a flow on the route stands still before the run notices.
double FaultPlayer::patience(Id route, std::size_t event) const {
  const double noticed = replay_.detection_of(replay_.trace().events[event]);
  const auto given_up = faults::gives_up_after(connection(route).transport);
  return given_up ? std::min(noticed, *given_up) : noticed;
}

faults::Connection FaultPlayer::connection(Id route) const {
  const SharedNetwork::Ends ends = network_.ends(route);
  return faults::connection_of(cluster_, ends.from, ends.to, network_.links(route), ends.wire);
}

/// Gives a link, and the routes over it, what the events leave of them.
void FaultPlayer::degrade(Id link) {
  double factor = 1;
  for (const Degraded& d : degraded_)
    if (d.link == link) factor *= d.factor;
  network_.slow_down(link, factor);
  if (!loses_packets(replay_.trace())) return;
  for (Id route = 0; route < network_.routes(); ++route) {
    const std::span<const Id> links = network_.links(route);
    if (std::find(links.begin(), links.end(), link) == links.end()) continue;
    double arrives = 1;
    for (const Degraded& d : degraded_)
      if (std::find(links.begin(), links.end(), d.link) != links.end()) arrives *= 1 - d.lost;
    network_.limit(route, arrives < 1 ? faults::rate_with_loss(connection(route), 1 - arrives)
                                      : FaultReplay::never);
  }
}

}  // namespace rehearse::sim
