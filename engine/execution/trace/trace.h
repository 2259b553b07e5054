// A trace is the start and the end of each (rank, op, step) that an executor ran. Executors pass it
// on to sinks and store nothing; sinks (metrics, the Chrome trace writer, a test's recording) keep
// what they need.
//
// `start` is when the op can begin: its lane is free, the ops in its `after` list have ended and,
// in a rendezvous, the same holds for every partner. So waiting counts as idle time. A Put ends
// when its lane is free again: when the message has arrived, or at once if it is an answer, which
// lies in an outbox then. A Take ends when its message is delivered. It starts then, too, unless it
// has waited for an answer: that Take starts when the answer was put.
#pragma once
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::execution {

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  /// Start and end of (role, op, step) on the ranks role.ranks[first_place + i], in seconds since
  /// the run began. An executor reports each (role, op, step, place) exactly once. It reports the
  /// ops of an in-order lane of a place in lane order; otherwise any order is allowed.
  virtual void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
                      std::span<const double> ends) = 0;
  /// Whether the rest of the run is not needed: the executor then stops before its last step. It
  /// asks at least after each macro-iteration.
  virtual bool may_stop() const { return false; }
  /// The owner of a sink calls this after the run, to learn about errors while storing the trace.
  virtual void close() {}
};

/// Passes every record on to several sinks. The run may stop as soon as one of them lets it.
class Tee : public TraceSink {
 public:
  explicit Tee(std::vector<TraceSink*> sinks) : sinks_(std::move(sinks)) {}
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override {
    for (TraceSink* sink : sinks_) sink->record(role, op, step, first_place, starts, ends);
  }
  bool may_stop() const override {
    return std::any_of(sinks_.begin(), sinks_.end(),
                       [](const TraceSink* s) { return s->may_stop(); });
  }

 private:
  std::vector<TraceSink*> sinks_;
};

/// One record of a Recording.
struct Interval {
  Id role = 0, op = 0;
  int step = 0;
  Id place = 0;
  double start = 0, end = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};
/// Stores all records: for tests and small runs.
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
