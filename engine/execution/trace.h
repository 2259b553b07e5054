// A trace is what an executor did: for each (rank, op, step) when it began and when it ended.
// Executors hand it over in bulk and keep none of it; sinks (metrics, the Chrome trace writer, a
// test's memory) take what they need.
//
// `start` is when the op could begin: its lane was free, its `after` list done and, for a
// rendezvous, every partner as ready. So waiting is idle time, not busy time. A Take starts and
// ends when its message is delivered; a Put ends when its lane is free again.
#pragma once
#include <span>
#include <utility>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::execution {

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  /// The instance of (role, op) that serves `step`, at the ranks role.ranks[first_place + i]:
  /// seconds since the run began. An executor reports each (role, op, step, place) exactly once;
  /// ops of one in-order lane of one place in that lane's order; anything else in any order.
  virtual void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
                      std::span<const double> ends) = 0;
  /// The run is over; called by whoever owns the sink, where it matters whether all of it was kept.
  virtual void close() {}
};

/// Hands everything on to several sinks.
class Tee : public TraceSink {
 public:
  explicit Tee(std::vector<TraceSink*> sinks) : sinks_(std::move(sinks)) {}
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override {
    for (TraceSink* sink : sinks_) sink->record(role, op, step, first_place, starts, ends);
  }

 private:
  std::vector<TraceSink*> sinks_;
};

/// Remembers everything: for tests and small runs.
struct Interval {
  Id role = 0, op = 0;
  int step = 0;
  Id place = 0;
  double start = 0, end = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};
class Recording : public TraceSink {
 public:
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override {
    for (std::size_t i = 0; i < starts.size(); ++i)
      intervals.push_back({role, op, step, first_place + static_cast<Id>(i), starts[i], ends[i]});
  }
  std::vector<Interval> intervals = {};
};

}  // namespace rehearse::execution
