// Measures this machine for simulations of it (`rehearse profile`). Every rank runs the whole model
// step after step, as in training, and times each segment pass and each update. Then it times
// kernels, collectives and transfers by size. The profile keeps medians of these parts and nothing
// longer, such as the time of a step.
#pragma once
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/costs/profile.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "runtime/control/launch/environment.h"

namespace rehearse::runtime {

struct ProfileSettings {
  std::vector<int> samples = {1, 2, 4};  // of a micro-batch
  std::vector<int> tensor_parallel = {1};
  program::DType dtype = program::DType::f32;
  plan::Optimizer optimizer = plan::Optimizer::adamw;
  bool network = true;                  // time collectives, transfers and pairs
  std::string device = "auto";          // as run.device
  std::string cluster = {};             // the cluster that the ranks are on; empty: this host
  std::string kind = {};                // of the devices, of the device table; empty: `cluster`'s
  int threads = 0;                      // per rank; 0: cores / ranks
  bool encrypt = false;                 // connections, as run.encrypt
  Seconds segment_time = Seconds(1.5);  // spent on each number of samples and each tp
  Bytes largest = Bytes(32e6);          // payload of the largest collective and transfer
  Seconds kernel_time = Seconds(0.1);   // spent on each kernel and size
  Seconds collective_time = Seconds(0.2);  // spent on each collective and size
};

/// Every rank of the environment calls it; all get the same profile. Its times are each rank's
/// median, averaged over ranks; for collectives and transfers the maximum over ranks. Throws
/// InputError for a model without blocks, for a cluster that does not fit the ranks, and for GPUs
/// of which neither settings.cluster nor settings.kind says the kind.
costs::Profile measure_profile(const model::ModelSpec& model, const ProfileSettings& settings,
                               const Environment& environment);

}  // namespace rehearse::runtime
