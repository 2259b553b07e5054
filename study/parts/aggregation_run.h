// A secure sum in real processes: a child for each client, and this process as the server. They
// speak over socket pairs. A client that leaves ends its process, and the server sees the end of
// its stream. One that falls silent sends nothing more, and the server goes on without it after a
// timeout. The clients' weights are drawn, uniform between -1 and 1.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/base/units.h"
#include "engine/secure/group.h"

namespace rehearse::study {

struct AggregationRun {
  int counted = 0;  // clients whose weights are in the sum
  /// By client: bytes of messages on its socket. Each message also has 8 bytes for its length.
  std::vector<secure::ClientTraffic> traffic = {};
  bool exact = false;  // the sum is that of the levels in the clear
  double error = 0;    // largest difference of the mean to the exact one
  double seconds = 0;  // of wall clock, on this machine
};

/// Who takes part until when.
struct Taking {
  const secure::Leaving& leaving;  // who falls silent, too
  const secure::Leaving& silent;
  Seconds timeout = {};  // the server goes on when nobody else has spoken for so long
};

/// `weights`: by client, as for secure::levels_of. Throws BackendError when the round fails, or
/// when another client than those of `silent` is silent for the timeout.
AggregationRun run_aggregation(const secure::Group& group, const Taking& part,
                               const std::vector<double>& weights);

}  // namespace rehearse::study
