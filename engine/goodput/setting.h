// What the walk over weeks needs to know of a run: how long steps and checkpoints take, which nodes
// hold which replicas, and what a recovery costs. Times are whole nanoseconds, so that the parts of
// a run add up to its duration exactly.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/base/id.h"
#include "engine/base/units.h"

namespace rehearse::goodput {

/// Nanoseconds.
using Ticks = std::int64_t;
constexpr double ticks_per_second = 1e9;
inline Ticks ticks(Seconds s) { return std::llround(s.value * ticks_per_second); }
inline Seconds seconds(Ticks t) { return Seconds(static_cast<double>(t) / ticks_per_second); }

/// What a checkpoint of one kind costs (checkpoint_prices.h).
struct CheckpointPrices {
  Ticks stall = 0;       // all steps wait
  Ticks persist = 0;     // from then until a failure can no longer destroy it
  Ticks load = 0;        // to read it into all devices
  Ticks load_whole = 0;  // to read one that survives every failure, where nodes lost the others
  /// From when nodes have one of those until it survives every failure; one at a time.
  Ticks persist_whole = 0;
  bool local = false;   // on the nodes' own disks, not on the shared one
  bool on_disk = true;  // false: in the memory of hosts
  /// It is lost when all of so many neighbouring nodes have died since it was written; 0: it
  /// survives every failure.
  int group = 0;
  int whole_every = 1;  // every so many checkpoints, one survives every failure; 0: none does
};

struct Setting {
  Ticks duration = 0;
  Ticks step = 0;  // of the undisturbed run
  // Where replicas are. A slot is a node that the job uses. `ranks_of_slot` by slot; the data-
  // parallel replicas that have a rank on a slot, in ascending order.
  std::vector<int> ranks_of_slot = {};
  std::vector<std::vector<Id>> replicas_of_slot = {};
  int replicas = 1, ranks_of_replica = 1;
  int servers = 0;  // parameter servers: ranks that every replica needs. A slot with one of them
                    // counts as a slot of all replicas
  /// Of a step with so many replicas and the whole global batch, at least `step`. 0: the job cannot
  /// run with so few.
  std::function<Ticks(int)> step_with = {};
  bool replicated = false;      // every replica, with the servers, has a whole copy of the state
  std::int64_t save_every = 0;  // steps between checkpoints; 0: none are written
  CheckpointPrices checkpoint = {};
  // Recovery.
  std::optional<Ticks> detection = {};            // of every failure; none: what the failure says
  Ticks default_detection = ticks(Seconds(600));  // of a failure that says nothing
  Ticks restart = 0;  // all processes from nothing, without reading the state
  Ticks replacement = 0, replan = 0, takeover = 0;
  Ticks copy = 0;  // one replica's state from another
  double overhead = 0;
  int spares = 0, min_ranks = 1;

  int slots() const { return static_cast<int>(ranks_of_slot.size()); }
  /// Ranks of a run with so many replicas.
  int ranks_with(int replicas_now) const { return replicas_now * ranks_of_replica + servers; }
};

}  // namespace rehearse::goodput
