// Step time of a placed mesh by arithmetic: what placement compares its candidates by, thousands of
// times faster than a dry run and coarser. A pipeline of unlike stages takes the sum of its stages
// once and its slowest stage for every further micro-batch; tensor groups add their rings to each
// segment; gradients are summed by rings, of which those that leave a node together share its way
// out, while the backward of this stage and of those before it still runs.
#pragma once
#include <vector>

#include "engine/planner/partition.h"
#include "engine/planner/rank_grid.h"

namespace rehearse::planner {

class Estimate {
 public:
  /// All must outlive it. `plan` may change its stages and shares between calls.
  Estimate(const model::ModelSpec& model, const plan::Plan& plan, const cluster::Cluster& cluster,
           std::span<const Id> devices, const Distances& distances, const SegmentTable& table,
           std::span<const double> pace = {});

  /// Whose device is where, from now on.
  void stand(const Assignment& assignment);
  /// Seconds that a stage takes for a micro-batch of segments [begin, end) on its slowest ranks;
  /// infinite where they do not fit into `memory_part` of what plans may use of a device.
  double chunk_seconds(std::size_t chunk, std::size_t begin, std::size_t end,
                       double memory_part) const;
  /// Samples a second of each replica, by its slowest stage.
  std::vector<double> speeds() const;
  /// Of a step of the plan as it is.
  double step_seconds() const;

 private:
  struct Player {  // ranks of a stage that are alike
    Id kind = 0;
    int replica = 0;
    double hop = 0;   // the longest of its tensor ring, seconds a byte
    double pace = 1;  // how many times as long it computes
  };
  double seconds_of(const Player& player, int samples, std::size_t begin, std::size_t end) const;
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
  std::vector<std::vector<Player>> players_ = {};  // by stage
};

}  // namespace rehearse::planner
