// The inside of SharedNetwork: routes, and the flows and work that are under way.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <boost/container/flat_map.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <queue>
#include <simgrid/kernel/Timer.hpp>
#include <simgrid/s4u.hpp>

#include "sim/network.h"

namespace rehearse::sim {

namespace sg = simgrid::s4u;

/// SimGrid takes flow sizes as whole numbers, and a flow may have a fraction of a byte (a share of
/// a tensor times a factor). So one byte is 1024 of SimGrid's units.
constexpr double units_per_byte = 1024;

struct SharedNetwork::Impl {
  enum class Kind : std::uint8_t { transfer, work, wake, alone };
  /// An activity that was asked for and has not started, or the end of a flow that is alone.
  struct Start {
    double date = 0, amount = 0;  // amount: bytes of a transfer, seconds of work
    std::uint64_t order = 0;      // starts with equal dates run in the order of the calls
    Token token = 0;
    Id place = none;  // the route of a transfer, the host of work, the index of a flow alone
    int threads = 1;
    Kind kind = Kind::wake;
    bool operator>(const Start& b) const {
      return date != b.date ? date > b.date : order > b.order;
    }
  };
  struct Route {
    sg::Host* host = nullptr;
    double latency = 0, bandwidth = std::numeric_limits<double>::infinity();
    std::vector<Id> links = {};
    Ends ends = {};
    std::vector<Id> devices = {};
    sg::Link* own = nullptr;  // carries this route's flows only; null: nothing limits them
    double most = std::numeric_limits<double>::infinity();  // limit()
    int held = 0, flows = 0;
  };
  /// The ways between two devices, and each way's route; none: the way was not used yet.
  struct Pair {
    std::span<const cluster::Path> ways = {};
    std::vector<Id> routes = {};
  };
  /// An activity under way. The activity's user pointer in SimGrid holds the slot's index + 1.
  struct Slot {
    sg::ActivityPtr activity = nullptr;
    Token token = 0;
    Id route = none;  // of a flow
  };
  /// A flow that no other flow met on its links. It needs no SimGrid while that is so, because its
  /// rate is the bandwidth of its route.
  struct Alone {
    double since = 0, bytes = 0;
    Token token = 0;
    Id route = none;        // none: not in use
    std::uint64_t end = 0;  // Start::order of its end
  };
  /// What flows on a link.
  struct Traffic {
    Id alone = none;           // index of the flow that has the link to itself
    std::uint32_t shared = 0;  // number of SimGrid's flows
  };

  Impl(const cluster::Cluster& c, std::span<const double> s, Options o)
      : cluster(c),
        slow(s.begin(), s.end()),
        options(o),
        traffic(c.links().size()),
        pairs(c.devices().size()) {}

  const cluster::Cluster& cluster;
  std::vector<double> slow;
  Options options;
  std::vector<double> now_slow = {};  // by link: of slow_down(); empty: all 1
  std::function<void(Id)> stands = {};
  std::vector<Traffic> traffic;  // by link
  std::vector<Alone> alone = {};
  std::vector<Id> free_alone = {};
  sg::Engine* engine = nullptr;
  sg::NetZone* zone = nullptr;
  sg::Host* source = nullptr;
  std::vector<sg::Link*> links = {};
  std::vector<Route> routes = {};
  std::vector<boost::container::flat_map<Id, Pair>> pairs;  // by sender and receiver: a device
                                                            // sends to few others
  std::map<std::vector<Id>, Id> trees = {};                 // by links: the route
  std::vector<sg::Host*> cores = {};

  std::priority_queue<Start, std::vector<Start>, std::greater<>> starts = {};
  std::vector<double> armed = {};  // dates of the timers that are set, the earliest last
  std::uint64_t asked = 0;
  std::vector<Slot> slots = {};
  std::vector<std::uint32_t> free_slots = {};
  std::vector<sg::ActivityPtr> ended = {};
  std::function<void(Token)> done = {};
  std::int64_t transfers = 0, flows = 0;
  bool running = false;  // within run() and outside fire(), which calls arm() at its end

  /// Creates SimGrid's link at the first route over it.
  void link_ready(Id link) {
    if (links.size() < cluster.links().size()) links.resize(cluster.links().size());
    if (links[link]) return;
    links[link] = zone->add_link(fmt::format("l{}", link), bandwidth(link) * units_per_byte);
    links[link]->set_latency(0.0);
    links[link]->seal();
  }
  Id add_route(const cluster::Path& way, Id from, Id to) {
    Route route{.latency = way.latency.value,
                .links = way.links,
                .ends = {.from = from, .to = to, .wire = way.wire.value},
                .devices = {from, to}};
    std::vector<sg::LinkInRoute> hops;
    for (const Id link : way.links) {
      link_ready(link);
      hops.emplace_back(links[link]);
    }
    set_bandwidth(route);
    if (options.limits) {
      route.own =
          zone->add_link(fmt::format("o{}", routes.size()), route.bandwidth * units_per_byte);
      route.own->set_latency(0.0);
      route.own->seal();
      hops.emplace_back(route.own);
    }
    route.host = zone->add_host(fmt::format("r{}", routes.size()), 1.0);
    zone->add_route(nullptr, route.host, hops, false);
    routes.push_back(std::move(route));
    return static_cast<Id>(routes.size() - 1);
  }
  /// Bytes per second, with the link's slowdown.
  double bandwidth(Id link) const {
    return cluster.links()[link].bandwidth.value / (slow.empty() ? 1 : slow[link]) /
           (now_slow.empty() ? 1 : now_slow[link]);
  }
  void set_bandwidth(Route& route) const {
    route.bandwidth = route.most;
    for (const Id link : route.links) route.bandwidth = std::min(route.bandwidth, bandwidth(link));
  }
  /// Hands the flow that is alone on a link to SimGrid.
  void share_link(Id link) {
    if (traffic[link].alone != none) meet(traffic[link].alone, sg::Engine::get_clock());
  }
  /// Stops the flows on a route, or lets them go on.
  void set_moving(Id route, bool moving) {
    if (routes[route].flows == 0) return;
    for (const Slot& slot : slots) {
      if (!slot.activity || slot.route != route) continue;
      if (moving)
        slot.activity->resume();
      else
        slot.activity->suspend();
    }
  }

  void ask(Start start) {
    start.order = asked++;
    starts.push(start);
    arm();
  }
  /// Sets one timer for the earliest start, because many starts have equal dates. A timer stays set
  /// when an earlier start arrives, so that no date gets two timers.
  void arm() {
    if (!running || starts.empty()) return;
    const double date = starts.top().date;
    if (!armed.empty() && armed.back() <= date) return;
    armed.push_back(date);
    simgrid::kernel::timer::Timer::set(date, [this] { fire(); });
  }
  /// A timer went off: starts everything that is due.
  void fire() {
    const double now = sg::Engine::get_clock();
    running = false;
    while (!starts.empty() && starts.top().date <= now) {
      const Start start = starts.top();
      starts.pop();
      switch (start.kind) {
        case Kind::wake:
          done(start.token);
          break;
        case Kind::work:
          begin_work(start);
          break;
        case Kind::transfer:
          begin_transfer(start);
          break;
        case Kind::alone:
          end_alone(start);
          break;
      }
    }
    while (!armed.empty() && armed.back() <= now) armed.pop_back();
    running = true;
    arm();
  }
  void begin_work(const Start& start) {
    if (start.amount <= 0) return done(start.token);
    sg::ExecPtr exec = sg::Exec::init();
    exec->set_host(cores[start.place]);
    exec->set_flops_amount(start.amount);
    if (start.threads > 1) exec->set_thread_count(start.threads);
    begin(exec, start.token);
    exec->start();
  }
  void begin_transfer(const Start& start) {
    if (start.amount <= 0 || start.place == none) return done(start.token);
    ++flows;
    const std::vector<Id>& way = routes[start.place].links;
    bool free = options.bypass && routes[start.place].held == 0;
    for (const Id link : way) {
      if (traffic[link].alone != none) meet(traffic[link].alone, start.date);
      free = free && traffic[link].alone == none && traffic[link].shared == 0;
    }
    if (free)
      begin_alone(start);
    else
      share(start.place, start.amount, start.token);
  }
  /// Starts a flow that has all its links to itself.
  void begin_alone(const Start& start) {
    Id index = static_cast<Id>(alone.size());
    if (free_alone.empty()) {
      alone.emplace_back();
    } else {
      index = free_alone.back();
      free_alone.pop_back();
    }
    alone[index] = {.since = start.date,
                    .bytes = start.amount,
                    .token = start.token,
                    .route = start.place,
                    .end = asked};
    for (const Id link : routes[start.place].links) traffic[link].alone = index;
    ask({.date = start.date + start.amount / routes[start.place].bandwidth,
         .place = index,
         .kind = Kind::alone});
  }
  void end_alone(const Start& end) {
    Alone& flow = alone[end.place];
    if (flow.route == none || flow.end != end.order) return;  // it met another flow
    leave(end.place);
    free_alone.push_back(end.place);
    flow.route = none;
    done(flow.token);
  }
  /// The flow no longer has its links to itself.
  void leave(Id index) {
    for (const Id link : routes[alone[index].route].links)
      if (traffic[link].alone == index) traffic[link].alone = none;
  }
  /// Another flow comes to a link of a flow that was alone. From now on, SimGrid shares the links.
  void meet(Id index, double now) {
    constexpr double instant = 1e-12;  // seconds: SimGrid would end the flow at once
    Alone& flow = alone[index];
    const double bandwidth = routes[flow.route].bandwidth;
    const double left = flow.bytes - (now - flow.since) * bandwidth;
    leave(index);
    if (left <= instant * bandwidth) return;  // its end is due
    share(flow.route, left, flow.token);
    flow.route = none;
    free_alone.push_back(index);
  }
  /// Starts a flow in SimGrid.
  void share(Id route, double bytes, Token token) {
    for (const Id link : routes[route].links) ++traffic[link].shared;
    ++routes[route].flows;
    sg::CommPtr comm = sg::Comm::sendto_init(source, routes[route].host);
    begin(comm, token, route);
    comm->set_payload_size(static_cast<std::uint64_t>(std::llround(bytes * units_per_byte)));
    comm->start();
    if (routes[route].held == 0) return;
    comm->suspend();
    if (stands) stands(route);
  }
  void begin(const sg::ActivityPtr& activity, Token token, Id route = none) {
    std::uint32_t slot = 0;
    if (free_slots.empty()) {
      slot = static_cast<std::uint32_t>(slots.size());
      slots.emplace_back();
    } else {
      slot = free_slots.back();
      free_slots.pop_back();
    }
    slots[slot] = {activity, token, route};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): SimGrid offers one pointer, which needs no pointee
    activity->set_data(reinterpret_cast<void*>(static_cast<std::uintptr_t>(slot) + 1));
  }
  void end(const sg::Activity& activity) {
    const auto slot = reinterpret_cast<std::uintptr_t>(activity.get_data<void>());
    if (slot == 0 || activity.get_state() == sg::Activity::State::FAILED) return;
    Slot& mine = slots[slot - 1];
    const Token token = mine.token;
    if (mine.route != none) {
      for (const Id link : routes[mine.route].links) --traffic[link].shared;
      --routes[mine.route].flows;
    }
    // The activity is freed when the time advances: it must not be destroyed while it reports its
    // own end.
    ended.push_back(std::move(mine.activity));
    mine.activity = nullptr;
    free_slots.push_back(static_cast<std::uint32_t>(slot - 1));
    done(token);
  }
};

}  // namespace rehearse::sim
