// Where a rank stands on the mesh of a plan, and what the ranks of a mesh say to each other in a
// step: the c_l of Sun 2026, eq. 1, and the rings that eq. 1 leaves out.
#pragma once
#include <vector>

#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/planner/assignment.h"

namespace rehearse::planner {

/// Ranks of the mesh are numbered row by row in the plan's order of axes; servers come behind.
class RankGrid {
 public:
  explicit RankGrid(const plan::Plan& plan);
  Id rank(int stage, int replica, int shard) const {
    return static_cast<Id>(stage * pp_ + replica * dp_ + shard * tp_);
  }

 private:
  int pp_ = 0, dp_ = 0, tp_ = 0;  // strides
};

/// Bytes of one micro-batch's activation where one segment ends and the next begins: c_l.
double boundary_bytes(const model::ModelSpec& model, const plan::Plan& plan, int samples);
/// Bytes of the gradient that a rank of a stage holds of these segments.
double gradient_bytes(const model::ModelSpec& model, const plan::Plan& plan,
                      const std::vector<Id>& segments);

/// Who sends how much to whom in a step: activations forward and gradients back along the pipeline,
/// one ring all-reduce a segment and direction in each tensor group, one of the gradients in each
/// group of replicas. `plan` has stages.
std::vector<RankTraffic> traffic_of(const model::ModelSpec& model, const plan::Plan& plan);

}  // namespace rehearse::planner
