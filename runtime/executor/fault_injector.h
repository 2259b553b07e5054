// Replays a fault trace on a real rank: at the step and phase of an event the rank kills or stops
// itself, hangs, becomes slow, writes slowly or not at all, computes with a wrong weight, or
// damages its part of a checkpoint. An event strikes once in a run, however often its step is done
// again: what has struck is in train.out/faults.jsonl.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "engine/faults/event.h"
#include "engine/program/program.h"

namespace rehearse::runtime {

/// Why a real rank cannot replay the event; empty: it can.
std::string not_replayed(const faults::Event& event);

/// A rank and its node. `leads`: it is the lowest one there.
struct RankPlace {
  Id rank = none, node = none;
  bool leads = false;
  Id ranks = 0;  // of this start
};

/// A factor on the time that something takes, from an event on.
class Slowness {
 public:
  void slow_down(const faults::Event& event);
  double now() const;

 private:
  std::atomic<double> factor_ = 1;
  std::atomic<std::chrono::steady_clock::rep> until_ = 0;
};

class FaultInjector {
 public:
  /// `trace`: events that ranks can replay (not_replayed). `folder`: train.out.
  FaultInjector(const faults::Trace& trace, const RankPlace& place, const std::string& folder);

  /// Call before an op of a step (from 0) runs, from any lane.
  void strike_before_op(const program::Work& work, std::int64_t step);
  /// Call before a checkpoint after `steps` steps is written for which all ranks stop.
  void saving(std::int64_t steps);
  /// Call when the checkpoint after `steps` steps is complete. `shard`: this rank's file in it.
  void saved(std::int64_t steps, const std::string& shard);
  /// Call before the run reads the checkpoint after `steps` steps, from which it goes on.
  void recovering(std::int64_t steps);
  /// Sets what makes a weight wrong: called with the event's factor (1: the highest bit of the
  /// exponent flips) and the step (from 0).
  using Corrupt = std::function<void(double factor, std::int64_t step)>;
  void on_corruption(Corrupt corrupt);
  /// Sets what takes a node away: its other processes, and what it keeps.
  void on_node_death(std::function<void()> lose) { lose_node_ = std::move(lose); }
  /// Why each event of this rank that has not struck did not, at the end of a run of `steps` steps:
  /// a sentence each. Of an event of several ranks, one of them says it; rank 0, of those of ranks
  /// that a recovery has left out.
  std::vector<std::string> not_struck(std::int64_t steps) const;
  /// Factor on the time of local ops now.
  double slowdown() const { return ops_.now(); }
  /// Factor on the time of this rank's reads and writes of checkpoints now. `shared`: on the disk
  /// that all nodes share.
  double disk_slowdown(bool shared) const {
    return own_disk_.now() * (shared ? shared_disk_.now() : 1);
  }

 private:
  struct Mine {
    std::size_t number = 0;  // in the trace
    faults::Event event = {};
    bool struck = false;
    bool notes = true;  // of the ranks that an event strikes, one writes it down
  };
  bool strikes(const faults::Event& event) const;
  template <class Due>
  void strike(std::int64_t step, Due due, const std::string& shard = "");
  void act(const faults::Event& event, std::int64_t step, const std::string& shard);
  void slow_disk(const faults::Event& event);
  void note(const Mine& one, std::int64_t step) const;

  const RankPlace place_;
  const std::string log_;
  std::mutex mutex_;
  std::vector<Mine> mine_ = {};
  std::vector<Mine> absent_ = {};  // rank 0: events of ranks that this start does not have
  Corrupt corrupt_ = {};
  std::function<void()> lose_node_ = {};
  std::atomic<int> left_ = 0;  // events that have not struck
  Slowness ops_, own_disk_, shared_disk_;
};

}  // namespace rehearse::runtime
