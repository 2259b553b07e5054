// Brings what all ranks' lanes stamped together in rank 0 as one trace.
#pragma once
#include "engine/link.h"
#include "engine/trace.h"
#include "runtime/control.h"
#include "runtime/executor.h"

namespace rehearse {

/// Every rank calls it, after a run that kept stamps. In rank 0 hands all intervals to `sink`,
/// seconds since the earliest one; elsewhere does nothing with it. A rendezvous begins when its
/// last member came. Clocks of other machines are aligned at a barrier, to a fraction of a
/// millisecond.
void gather_trace(const LinkedProgram& linked, Executor& executor, Control& control,
                  const std::string& key, TraceSink* sink);

}  // namespace rehearse
