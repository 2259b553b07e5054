// Brings what all ranks' lanes stamped together in rank 0 as one trace.
#pragma once
#include <cstdint>
#include <string>

#include "engine/execution/trace.h"
#include "engine/link/link.h"
#include "runtime/control/control.h"
#include "runtime/execution/executor.h"

namespace rehearse::runtime {

/// Every rank calls it, after a run that kept stamps. In rank 0 hands all intervals to `sink`,
/// seconds since `origin` (of rank 0's clock; 0: since the earliest one, which it then becomes);
/// elsewhere does nothing with it. A rendezvous begins when its
/// last member came. Clocks of other machines are aligned at a barrier, to a fraction of a
/// millisecond.
void gather_trace(const link::LinkedProgram& linked, Executor& executor, Control& control,
                  const std::string& key, execution::TraceSink* sink, std::int64_t& origin);

}  // namespace rehearse::runtime
