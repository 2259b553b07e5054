// The shared resources of a simulation, on SimGrid 4.1: transfers that share links, and work that
// shares the cores of a host. Times are in seconds, sizes in bytes.
//
// Flows share links max-min fairly: SimGrid's CM02 model without its corrections for TCP (cross
// traffic, window, bandwidth factor), because RDMA and NVLink have no TCP. The caller pays the
// latency with a timer before the flow starts, and SimGrid's own latencies are 0. There are two
// reasons: SimGrid gives a flow with a longer round trip a smaller share of a link, and SimGrid
// loses a flow whose link changes during the flow's latency.
//
// A route is one host of a SimGrid star zone. The way down to that host is the whole path, so the
// cost of a route does not grow with the cluster, and any path can be a route:
//
//   source --- link 3 - link 7 - link 1 --- host r0    route 0
//          --- link 3 - link 2 ------------ host r1    route 1: shares link 3 with route 0
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/program/program.h"

namespace rehearse::sim {

/// One simulation. SimGrid allows one in the life of a process. Times count from its start.
class SharedNetwork {
 public:
  using Token = std::uint64_t;  // the caller's name for an activity

  struct Options {
    /// A flow that is alone on its links bypasses SimGrid until another flow comes to one of them.
    bool bypass = true;
    bool limits = false;  // limit() will be called
  };
  /// `slow`: a factor on each link's time, by link; empty: all 1. Throws BackendError when this
  /// process has simulated before.
  SharedNetwork(const cluster::Cluster& cluster, std::span<const double> slow, Options options);
  SharedNetwork(const cluster::Cluster& cluster, std::span<const double> slow)
      : SharedNetwork(cluster, slow, Options()) {}
  ~SharedNetwork();

  /// The route from one device to another that is fastest for `bytes`. `none` when the two are the
  /// same device. Throws InputError when the cluster has no path between them.
  Id route(Id from_device, Id to_device, double bytes);
  /// The route of a flow that a tree of switches carries: over all these links at one rate. Its
  /// latency is 0. `devices`: those that send to the tree or receive from it, two or more.
  Id route(const std::vector<Id>& links, std::span<const Id> devices);
  double latency(Id route) const;
  double bandwidth(Id route) const;  // of the slowest link, bytes per second
  std::span<const Id> links(Id route) const;
  /// The routes that were asked for so far are 0 to routes() - 1.
  Id routes() const;
  struct Ends {
    Id from = none, to = none;  // devices
    double wire = 0;            // latency of the links
  };
  Ends ends(Id route) const;  // of a tree: its first two devices
  /// The devices that stop the flows of a route when they stand still.
  std::span<const Id> devices(Id route) const;

  // What may change while it runs.
  /// A link's time gets this factor, beside that of the constructor.
  void slow_down(Id link, double factor);
  /// The flows of a route together carry at most so many bytes per second.
  void limit(Id route, double bandwidth);
  /// Flows on the route stand still until release() was called as often as hold().
  void hold(Id route);
  void release(Id route);
  /// The number of flows on a route, as far as SimGrid carries them; all, while it is held.
  int flows_on(Id route) const;
  /// `stands` is called when a flow begins on a route that is held.
  void tell_of_held(std::function<void(Id route)> stands);

  /// Adds a host with `cores` cores of speed 1, which all work on it shares; returns the host's
  /// number.
  Id add_cores(int cores);

  /// Each of these three starts an activity at `date` (>= now()). When the activity ends, run()
  /// calls `done(token)`.
  void transfer(double date, Id route, double bytes, Token token);
  /// `threads` threads that need `seconds` each on a core; a thread takes at most one core.
  /// `cores`: from add_cores().
  void work(double date, Id cores, double seconds, int threads, Token token);
  void wake(double date, Token token);

  /// Runs until no activity is under way. May be called once.
  void run(std::function<void(Token)> done);
  double now() const;

  std::int64_t transfers() const;  // all that were asked for, also those without bytes or links
  std::int64_t flows() const;      // the transfers with bytes and links
  /// Tokens of the activities that started and did not end. Not empty when a link or host failed.
  std::vector<Token> unfinished() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::sim
