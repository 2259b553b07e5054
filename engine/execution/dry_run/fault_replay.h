// Replays a fault trace within the steps of a run: when its events strike, how long ranks stand
// still or are slow, and when the run stops. An executor asks it before an op begins and when an op
// should end; only the executor knows links, which it handles in `on_strike`.
//
//   rank 1   | forward        | xxxx freeze xxxx | forward |   an op of 3 s that a freeze of 2 s
//            0                2                  4         5   strikes at 2 s ends at 5 s
//
// A rank that stands still begins no op. Its transfers that are under way stand still too.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/faults/event.h"
#include "engine/link/readiness.h"

namespace rehearse::execution {

/// How long a run takes to notice a failure that says nothing of that itself.
struct FaultDetection {
  std::optional<double> stated = {};  // seconds, of every failure: [recovery] detection
  double closed = 0.3;                // a process ends, so its connections close
  double silent = 61;                 // nothing is heard any more
};

/// What became of one event of the trace.
struct FaultOutcome {
  bool struck = false;
  double at = 0;                     // seconds since the run began
  int step = -1;                     // that its target began, from 0; -1: keyed by time
  std::optional<double> until = {};  // end of its effect; nothing: for good
  /// Why it has no effect within steps; empty: it has one, or it did not strike.
  std::string nothing = {};
};

/// An op that a rank has begun and cannot end.
struct WaitingOp {
  Id rank = none;
  int step = 0;
  std::string op = {};  // as in the program's text
};
/// The run cannot go on.
struct FaultStop {
  std::size_t event = 0;
  double at = 0, noticed = 0;           // when the event struck, when the run noticed it
  std::vector<WaitingOp> waiting = {};  // in the order of ranks
};

class FaultReplay {
 public:
  static constexpr double never = std::numeric_limits<double>::infinity();

  /// The references must outlive the replay.
  FaultReplay(const faults::Trace& trace, const program::Program& program,
              const cluster::Cluster& cluster, std::span<const Id> rank_to_device,
              const FaultDetection& detection);

  const faults::Trace& trace() const { return trace_; }
  /// Called when an event strikes, after its effect on ranks is known.
  std::function<void(std::size_t event, double now)> on_strike = {};

  /// When reach() is due next; never: it is not.
  double next() const;
  /// Strikes the events that are due, and stops the run if it notices a failure now.
  void reach(double now);
  /// A rank is about to begin an op. Strikes what waits for that, and returns when the rank may
  /// begin it: now, or when it no longer stands still; never: it is dead.
  double begins(Id rank, const program::Op& op, int step, double now);
  /// When an op ends that takes `seconds` on an undisturbed rank, as far as is known now. Local
  /// ops.
  double end_of(Id rank, const program::Work& work, double start, double seconds) const;
  /// The same for an exchange, which stands still when one of its ranks does.
  double end_of(std::span<const Id> ranks, double start, double seconds) const;
  /// Whether some rank stands still at some time, as far as is known.
  bool any_stands() const { return stands_; }
  bool dead(Id rank) const;

  /// The ranks that an event strikes; empty: none of the job's.
  std::vector<Id> ranks_of(const faults::Event& event) const;
  double detection_of(const faults::Event& event) const;
  /// The effect of a struck event ends then.
  void lasts(std::size_t event, double until);
  /// The run notices now that it cannot go on.
  void stop(std::size_t event, double now);
  /// Stops a run in which nothing happens any more, because of the latest event for good. False:
  /// there is none.
  bool stop_stuck(double now);
  bool stopped() const { return stop_.has_value(); }
  /// Notes what ranks wait for when the run has stopped.
  void note_waiting(const link::Readiness& readiness);

  const std::vector<FaultOutcome>& outcomes() const { return outcomes_; }
  const std::optional<FaultStop>& stopped_by() const { return stop_; }
  /// Whether nothing that strikes until then, or until the end of a step, disturbs what begins from
  /// `since` on.
  bool quiet(double since, double until, int last_step) const;

 private:
  struct Window {
    double from = 0, until = never;
    double rate = 1;  // of an undisturbed rank's; 0: it stands still
  };
  using Windows = std::vector<Window>;

  void strike(std::size_t event, double now);
  void act_on_ranks(const faults::Event& event, double now, double until);
  bool writes_to_disk_of(const faults::Event& e, Id rank) const;
  void act_on_disks(const faults::Event& event, double now, double until);
  double free_at(Id rank, double now) const;
  std::string nothing_of(const faults::Event& event) const;
  static double walk(std::span<const Windows* const> windows, double start, double seconds);

  const faults::Trace& trace_;
  const cluster::Cluster& cluster_;
  std::span<const Id> rank_to_device_;
  FaultDetection detection_;
  std::vector<bool> saves_to_shared_, saves_to_local_;  // by rank
  bool stands_ = false;
  std::vector<FaultOutcome> outcomes_;
  std::vector<std::size_t> timed_ = {};                   // in order of time
  std::size_t next_timed_ = 0;                            // into timed_
  std::map<int, std::vector<std::size_t>> at_step_ = {};  // by step from 0: not struck yet
  std::multimap<double, std::size_t> notices_ = {};       // when the run notices which failure
  std::vector<Windows> ranks_, disks_;  // by rank: of local ops; of writes as well
  std::vector<Windows> still_;          // by rank: when it stands still
  std::optional<FaultStop> stop_ = {};
};

}  // namespace rehearse::execution
