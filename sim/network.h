// What contends, on SimGrid 4.1: transfers over routes of shared links, and work on cores that the
// ranks of a host share. Max-min fair flows (SimGrid's CM02 model without its corrections for TCP:
// no cross traffic, no window, no bandwidth factor), because RDMA and NVLink have no TCP. Latencies
// are paid by a timer before a flow starts and SimGrid's own are 0: SimGrid shares a link by round
// trip time where it knows one, and loses a flow whose link changes during its latency.
//
// A route is one host of a SimGrid star zone whose way down is the whole path, so its cost does not
// grow with the cluster and any path can be a route.
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

/// One simulation; SimGrid allows one in the life of a process. Times are seconds since its begin.
class SharedNetwork {
 public:
  using Token = std::uint64_t;  // names an activity to whoever started it

  /// `slow`: by link, how many times as long it takes; empty: none. Throws BackendError when this
  /// process has simulated before.
  SharedNetwork(const cluster::Cluster& cluster, std::span<const double> slow);
  ~SharedNetwork();

  /// The route between two devices that is fastest for so many bytes. `none` when both are one
  /// device. Throws InputError when the cluster has no path.
  Id route(Id from_device, Id to_device, double bytes);
  double latency(Id route) const;
  double bandwidth(Id route) const;  // of the slowest link, bytes a second
  std::span<const Id> links(Id route) const;
  /// `cores` cores of speed 1, shared by the works on them.
  Id add_cores(int cores);

  /// Each of these ends by a call of `done(token)` at its own time. `date` >= now().
  void transfer(double date, Id route, double bytes, Token token);
  /// `threads` threads of `seconds` each, at most one core for each thread.
  void work(double date, Id cores, double seconds, int threads, Token token);
  void wake(double date, Token token);

  /// Run until nothing is under way. May be called once.
  void run(std::function<void(Token)> done);
  double now() const;

  std::int64_t transfers() const;  // started, those without bytes or links included
  std::int64_t flows() const;      // ... that SimGrid simulated
  /// Activities that were started and never ended, by token: not empty when a link or host failed.
  std::vector<Token> unfinished() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::sim
