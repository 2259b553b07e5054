// Measures this machine for simulations of it (`rehearse profile`): every rank runs the whole model
// step after step, as training would, and the clock is read around each segment pass and each
// update; then kernels, collectives and transfers by size. What is kept is the median of each
// piece, never anything longer than one of them.
#pragma once
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/costs/profile.h"
#include "engine/base/units.h"
#include "runtime/control/environment.h"

namespace rehearse {

struct ProfileSettings {
  std::vector<int> samples = {1, 2, 4};  // of a micro-batch
  std::vector<int> tensor_parallel = {1};
  DType dtype = DType::f32;
  Optimizer optimizer = Optimizer::adamw;
  std::string cluster = {};  // that the ranks stand on; empty: this host, where all of them do
  int threads = 0;           // per rank; 0: cores / ranks
  Seconds segment_time = Seconds(1.5);     // spent on each number of samples
  Bytes largest = Bytes(32e6);             // collective
  Seconds collective_time = Seconds(0.2);  // spent on each kind and size
};

/// Every rank of the environment calls it; all get the same profile (times are means over ranks of
/// each rank's median). Throws InputError for a model without blocks.
Profile measure_profile(const ModelSpec& model, const ProfileSettings& settings,
                        const Environment& environment);

}  // namespace rehearse
