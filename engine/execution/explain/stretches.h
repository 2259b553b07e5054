// The critical path in pieces that a reader can follow: "forward L0.attention to L5.mlp of
// micro-batch 3 on rank 8". A stretch is one pass of one micro-batch on one rank, together with the
// communication and the host's work between its segments; or a row of equal other ops.
// Recomputation belongs to the backward pass.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "engine/execution/explain/critical_path.h"
#include "engine/execution/explain/work_parts.h"

namespace rehearse::execution {

struct Stretch {
  Id role = none, place = none;
  Id rank = none;  // the first of `ranks` equal ranks
  int ranks = 0;
  std::string what = {};           // "forward", "dp all-reduce", "update"
  std::string from = {}, to = {};  // names of the first and the last segment; empty: no pass
  int micro_batch = -1;            // -1: no pass
  int ops = 0;
  double start = 0, end = 0;               // seconds since the run began
  double communication_s = 0, host_s = 0;  // parts of its time
  double seconds() const { return end - start; }
};

/// In the order of the path. The seconds of all stretches sum to those of the path.
std::vector<Stretch> stretches(const History& history, const model::ModelSpec& model,
                               const WorkParts& parts, std::span<const PathOp> path);

}  // namespace rehearse::execution
