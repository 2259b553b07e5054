// A secure sum in real processes: a child for each client, and this process as the server. They
// speak over socket pairs. A client that leaves ends its process, and the server sees the end of
// its stream. The clients' weights are drawn, uniform between -1 and 1.
#pragma once
#include <cstdint>
#include <vector>

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

/// `weights`: by client, as for secure::levels_of. Throws BackendError when the round fails.
AggregationRun run_aggregation(const secure::Group& group, const secure::Leaving& leaving,
                               const std::vector<double>& weights);

}  // namespace rehearse::study
