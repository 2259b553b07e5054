// The compute part of a profile of a modelled cluster (`rehearse profile --cluster`): seconds of
// segments, updates and kernels on each of its kinds of device, as a profiler that ran there would
// measure them, jitter and stragglers included: the median of several runs on every device.
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

/// Adds them. `disturber` is of as many ranks as there are devices, rank i on device i. Kinds that
/// cannot compute in the type are left out; throws InputError when none can.
void add_table_times(Profile& profile, const model::ModelSpec& model,
                     const cluster::Cluster& cluster, const cluster::Disturber& disturber,
                     const TableSettings& settings);

}  // namespace rehearse::costs
