// Scaling: how a job runs on more and more devices (the section [scaling] of SWEEP.toml).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "study/sweep/sweep.h"

namespace rehearse::study {

/// Puts a job on another number of devices.
class Resizer {
 public:
  /// `least`: the number of devices of the batch that a job states, if the batch grows (weak).
  Resizer(Scaling scaling, std::int64_t least) : scaling_(scaling), least_(least) {}
  /// The keys that put the job on so many devices, as overrides: as many nodes of its cluster as
  /// they need, or a torus that is nearly a cube. Throws InputError when the job states
  /// cluster.devices, or no batch that could grow.
  std::vector<std::string> keys_for(const Config& job, std::int64_t devices);

 private:
  struct Size {
    std::int64_t devices = 0;    // of a node, or of a cluster whose size is fixed
    bool fixed = false;          // the cluster's name takes no size
    bool of_ranks = false;       // the size counts ranks, not nodes
    std::size_t dimensions = 0;  // of a torus, whose size is one for each; 0: it is none
  };
  const Size& size_of(const Config& cluster, const std::string& name);

  Scaling scaling_;
  std::int64_t least_;
  std::map<std::string, Size> sizes_ = {};  // by cluster
};

/// Adds the figure `efficiency` (see results_of).
void add_efficiency(Scaling scaling, std::vector<Row>& results);

}  // namespace rehearse::study
