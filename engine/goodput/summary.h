// Walks of several seeds put together, and the best interval between two checkpoints.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/execution/measure/metrics.h"
#include "engine/goodput/walk.h"

namespace rehearse::goodput {

struct Summary {
  execution::Spread goodput = {};        // of the seeds
  double productive = 0;                 // mean seconds
  std::array<double, losses> lost = {};  // mean seconds by Loss
  double interruptions = 0, steps = 0, lost_steps = 0, checkpoints = 0, undetected = 0;  // means
  double reads = 0, destroyed = 0;  // means of Outcome's
  int waiting_at_end = 0;  // seeds that stood still for lack of nodes when their time was over
  int least_replicas = 0;  // of all seeds
};
Summary summarise(std::span<const Outcome> outcomes);

/// The incidents of each seed.
using Failures = std::vector<std::vector<Incident>>;
Summary walk_all(const Setting& setting, const Policy& policy, const Failures& failures);

/// Mean time between incidents that end a step or make numbers wrong, over all seeds; 0: there are
/// none. A stall that passes unnoticed is none.
Seconds between_incidents(const Failures& failures, const Setting& setting);

struct IntervalScore {
  std::int64_t save_every = 0;  // steps
  double goodput = 0;           // mean over the seeds
};
/// Goodput with intervals from an eighth to eight times Young's, each sqrt(2) times the one before,
/// and with some more about the best of these; in ascending order. Empty: nothing ever fails.
std::vector<IntervalScore> score_intervals(const Setting& setting, const Policy& policy,
                                           const Failures& failures);
/// The score of the highest goodput; of equal ones the longest interval. There must be one.
const IntervalScore& best(const std::vector<IntervalScore>& scores);

}  // namespace rehearse::goodput
