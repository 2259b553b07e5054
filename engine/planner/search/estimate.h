// Estimates the step time of a placed mesh by arithmetic. Placement compares its candidates with
// this estimate, because it is thousands of times faster than a dry run (and less exact).
//
//   step = M x slowest + (sum of the other stages + hops) / virtual_stages + exposed reduction
//
//     stage 0   F F F F . . . . B B B B     M = 4 micro-batches on 3 equal stages of 1 + 1 s:
//     stage 1   . F F F F . . B B B B .     4 x 2 + (2 + 2) = 12 s
//     stage 2   . . F F F F B B B B . .
//
// A stage's seconds per micro-batch are its forward, backward and recomputation, with the
// all-reduce rings of its tensor groups.
//
// Gradients are reduced by rings over the replicas. Rings that leave a node together share its
// bandwidth. The backward of a stage and of the stages before it hides the reduction; the rest is
// exposed.
#pragma once
#include <vector>

#include "engine/planner/placement/partition.h"
#include "engine/planner/placement/rank_grid.h"

namespace rehearse::planner {

class Estimate {
 public:
  /// All arguments must outlive this object. `plan` may change its stages and shares between calls.
  /// `devices`: the device ids; an Assignment is an index into them. `pace`: by rank, as in
  /// costs::Costs; empty: 1.
  Estimate(const model::ModelSpec& model, const plan::Plan& plan, const cluster::Cluster& cluster,
           std::span<const Id> devices, const Distances& distances, const SegmentTable& table,
           std::span<const double> pace = {});

  /// Sets the device of each rank for the calls that follow. Call it first.
  void set_assignment(const Assignment& assignment);
  /// Seconds of one micro-batch on the slowest rank of a chunk's stage, if the chunk holds the
  /// segments [begin, end). Infinite when they need more than the fraction `memory_part` of a
  /// device's usable memory (not checked with virtual stages).
  double chunk_seconds(std::size_t chunk, std::size_t begin, std::size_t end,
                       double memory_part) const;
  /// By replica: samples per second of its slowest stage.
  std::vector<double> speeds() const;
  /// Seconds per step with the plan's stages and shares.
  double step_seconds() const;

 private:
  /// The ranks of a replica's stage with the same kind of device and the same pace.
  struct StageRanks {
    Id kind = 0;
    int replica = 0;
    double hop = 0;   // seconds per byte of the longest hop of its tensor ring
    double pace = 1;  // how many times as long its compute takes
  };
  double seconds_of(const StageRanks& player, int samples, std::size_t begin,
                    std::size_t end) const;
  double replica_seconds(int stage, int replica, std::size_t begin, std::size_t end) const;
  std::vector<double> reduce_seconds() const;
  double exposed_seconds(const std::vector<double>& busy) const;

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const cluster::Cluster& cluster_;
  std::span<const Id> devices_;
  const Distances& distances_;
  const SegmentTable& table_;
  std::span<const double> pace_;  // by rank; empty: 1
  Assignment at_ = {};
  std::vector<std::vector<StageRanks>> players_ = {};  // by stage
};

}  // namespace rehearse::planner
