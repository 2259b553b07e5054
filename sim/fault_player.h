// Plays a fault trace on the network of a simulation: links that are slow, lossy or down,
// partitions, and the transfers of ranks that stand still. What events do to the ops of ranks is
// execution::FaultReplay's.
//
// A flow over a link that is down stands still. When the link is up again, the flow goes on after
// its transport's timeout (faults::resumes). If it has stood still for as long as the run takes to
// notice that, the run stops.
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "engine/execution/dry_run/fault_replay.h"
#include "engine/faults/transport.h"
#include "sim/network.h"

namespace rehearse::sim {

class FaultPlayer {
 public:
  /// Call it after the routes are known. `wake`: has reach() called at a date.
  FaultPlayer(execution::FaultReplay& replay, const cluster::Cluster& cluster,
              std::span<const Id> rank_to_device, SharedNetwork& network,
              std::function<void(double date)> wake);
  FaultPlayer(const FaultPlayer&) = delete;
  FaultPlayer& operator=(const FaultPlayer&) = delete;

  /// Asks for the first wake.
  void begin_run() { arm(); }
  /// Whether a rank may not begin an op now, because it stands still. It begins later, when the
  /// network says `token`, or never. Local ops begin in any case.
  bool must_wait(Id rank, const program::Op& op, link::Ready& ready, SharedNetwork::Token token);
  /// Whether what was to end now goes on until `end`, when the network says `token`, or for ever.
  bool goes_on(double end, double now, SharedNetwork::Token token);
  /// Strikes and ends what is due now.
  void reach(double now);
  /// Lets everything that stands still go on, at the end of a run.
  void release_all();

 private:
  /// Routes that an event keeps still.
  struct Hold {
    std::size_t event = 0;
    std::vector<Id> routes = {};
    Id link = none;     // that is down
    bool path = false;  // a path is broken: flows need a retransmission
  };
  /// A route that broken paths keep still.
  struct Broken {
    int holds = 0;
    double since = 0;  // its flows stand still
    bool stands = false;
    std::size_t event = 0;  // the latest that broke it
  };
  /// What an event does to a link, as long as it lasts.
  struct Degraded {
    std::size_t event = 0;
    Id link = none;
    double factor = 1, lost = 0;
  };

  void arm();
  void at(double date, std::function<void(double now)> action);
  void strike(std::size_t event, double now);
  void hold(Hold what, double now);
  void end_effect(std::size_t event, double now);
  void link_up(Id link, double now);
  void stands(Id route, double now);
  void check(Id route, double now);
  void degrade(Id link);
  Id link_named(const std::string& name) const;
  template <class Chosen>
  std::vector<Id> routes_where(Chosen chosen) const;
  double patience(Id route, std::size_t event) const;
  faults::Connection connection(Id route) const;

  execution::FaultReplay& replay_;
  const cluster::Cluster& cluster_;
  std::span<const Id> rank_to_device_;
  SharedNetwork& network_;
  std::function<void(double)> wake_;
  double armed_ = execution::FaultReplay::never;
  std::multimap<double, std::function<void(double)>> due_ = {};
  std::vector<Hold> holds_ = {};
  std::vector<Broken> broken_;  // by route
  std::vector<Degraded> degraded_ = {};
};

/// Whether the trace changes links.
bool changes_links(const faults::Trace& trace);
bool loses_packets(const faults::Trace& trace);

}  // namespace rehearse::sim
