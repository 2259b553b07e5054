// The numbers of the ranks of a mesh, and the traffic between ranks in a step: the c_l of Sun 2026,
// eq. 1, and the rings that eq. 1 leaves out. Example: order "pp,dp,tp" with 2 x 2 x 2 ranks
// (replica = dp rank, shard = tp rank):
//
//                   stage 0            stage 1
//                shard 0  shard 1   shard 0  shard 1
//     replica 0     0        1         4        5
//     replica 1     2        3         6        7
#pragma once
#include <vector>

#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/planner/placement/assignment.h"

namespace rehearse::planner {

/// Numbers the ranks of the mesh in the plan's order of axes, the last axis fastest. Ranks of
/// parameter servers follow after the mesh.
class RankGrid {
 public:
  explicit RankGrid(const plan::Plan& plan);
  /// `context`: the place along cp.
  Id rank(int stage, int replica, int shard, int context = 0) const {
    return static_cast<Id>(stage * pp_ + replica * dp_ + context * cp_ + shard * tp_);
  }

 private:
  int pp_ = 0, dp_ = 0, cp_ = 0, tp_ = 0;  // strides
};

/// c_l: bytes of one micro-batch's activation between two segments, shape (samples, tokens,
/// hidden).
double boundary_bytes(const model::ModelSpec& model, const plan::Plan& plan, int samples);
/// Bytes of the gradients of these segments on one tensor-parallel rank.
double gradient_bytes(const model::ModelSpec& model, const plan::Plan& plan,
                      const std::vector<Id>& segments);

/// The traffic of a step: activations and their gradients along the pipeline; in each tensor group
/// one ring all-reduce per segment and pass (forward, backward, recomputation); in each group of
/// replicas one ring all-reduce of the gradients. `plan` must have stages. Two entries may have the
/// same ranks.
std::vector<RankTraffic> traffic_of(const model::ModelSpec& model, const plan::Plan& plan);

}  // namespace rehearse::planner
