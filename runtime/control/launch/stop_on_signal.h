// What SIGINT and SIGTERM do to a run. The first asks for a checkpoint and an end after a step that
// all ranks reach. A later one ends the run at once, but not within the first second: a rank may
// get one request twice, from the terminal and from its launcher. The launcher's drain_signal also
// asks for a checkpoint and an end, after which the run goes on with other ranks.
#pragma once
#include <csignal>

#include "engine/base/units.h"
#include "runtime/control/control.h"

namespace rehearse::runtime {

/// A signal counts as a second request from this long after the first.
inline constexpr Seconds second_request_after = Seconds(1);

/// Installs the handlers while it lives; after a first signal they stay until the process ends. At
/// most one at a time in a process.
class StopOnSignal {
 public:
  explicit StopOnSignal(Control& control);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  /// The first SIGINT or SIGTERM that came; 0: none yet.
  int first() const;
  /// Whether the launcher has asked to drain.
  static bool drained();

 private:
  struct sigaction old_int_ = {}, old_term_ = {}, old_drain_ = {};
};

}  // namespace rehearse::runtime
