// Draws fault traces from a failure model. A draw depends on the model, the number of nodes and the
// seed, and on nothing else, so every machine draws the same trace.
#pragma once
#include <cstdint>

#include "engine/base/numbers/random.h"
#include "engine/faults/event.h"
#include "engine/faults/failure_model.h"

namespace rehearse::faults {

/// Draws traces for one job. Immutable; the model must outlive it.
class Drawer {
 public:
  /// `nodes`: that the job uses. `rate`: a factor on all rates.
  Drawer(const FailureModel& model, int nodes, double rate = 1);
  /// The events of so much time, in order of time. A node that dies has the time until it returns
  /// in `duration`. Spare nodes do not fail: nothing runs on them. Times are whole milliseconds.
  /// Throws InputError when there would be more than most_events.
  Trace operator()(Seconds duration, std::uint64_t seed) const;

 private:
  const FailureModel& model_;
  int nodes_ = 0;
  double rate_ = 1;
  LogNormal repair_;
};

}  // namespace rehearse::faults
