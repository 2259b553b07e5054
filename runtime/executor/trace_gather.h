// Gathers the time stamps of all ranks' lanes in rank 0 as one trace.
#pragma once
#include <cstdint>
#include <string>

#include "engine/execution/trace/trace.h"
#include "engine/link/link.h"
#include "runtime/control/control.h"
#include "runtime/executor/executor.h"

namespace rehearse::runtime {

/// Every rank calls it after a run that kept stamps. Rank 0 passes all intervals to `sink`; other
/// ranks ignore `sink`. Times are seconds since `origin`, nanoseconds of rank 0's clock; 0: the
/// earliest stamp becomes the origin. A rendezvous begins when its last member arrives. Clocks of
/// other hosts are aligned at a barrier, to a fraction of a millisecond.
void gather_trace(const link::LinkedProgram& linked, Executor& executor, Control& control,
                  const std::string& key, execution::TraceSink* sink, std::int64_t& origin);

}  // namespace rehearse::runtime
