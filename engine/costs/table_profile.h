// The compute part of a profile of a modelled cluster (`rehearse profile --cluster`): seconds of
// segments, updates and kernels on each kind of device, as a profiler on that cluster would measure
// them. Each time is a median over runs and devices, with jitter and stragglers.
#pragma once
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/costs/profile.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::costs {

struct TableSettings {
  std::vector<int> samples = {1, 2, 4};
  std::vector<int> tensor_parallel = {1};
  program::DType dtype = program::DType::f32;
  plan::Optimizer optimizer = plan::Optimizer::adamw;
  int repeats = 9;
};

/// Adds these times to `profile`. `disturber` has as many ranks as the cluster has devices; rank i
/// is on device i. Omits kinds that cannot compute in the dtype; throws InputError when none can.
void add_table_times(Profile& profile, const model::ModelSpec& model,
                     const cluster::Cluster& cluster, const cluster::Disturber& disturber,
                     const TableSettings& settings);

}  // namespace rehearse::costs
