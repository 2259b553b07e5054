// What SIGINT and SIGTERM do to a run. The first asks for a checkpoint and an end after a step that
// all ranks reach. A rank may get the one request twice, from the terminal and from whoever started
// it: what follows within a second is part of it. A signal after that ends the run at once.
#pragma once
#include <csignal>

#include "engine/base/units.h"
#include "runtime/control/control.h"

namespace rehearse::runtime {

/// From when on after the first one a signal is a second request.
inline constexpr Seconds second_request_after = Seconds(1);

/// Signals mean this while it lives, and after a first one until the process ends; one at a time in
/// a process.
class StopOnSignal {
 public:
  explicit StopOnSignal(Control& control);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  /// The first signal that came; 0: none.
  int first() const;

 private:
  struct sigaction old_int_ = {}, old_term_ = {};
};

}  // namespace rehearse::runtime
