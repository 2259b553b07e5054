// Measures this machine for simulations of it (`rehearse profile`): every rank runs the whole model
// step after step, as training would, and the clock is read around each segment pass and each
// update; then kernels, collectives and transfers by size. What is kept is the median of each
// piece, never anything longer than one of them.
#pragma once
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/costs/profile.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "runtime/control/environment.h"

namespace rehearse::runtime {

struct ProfileSettings {
  std::vector<int> samples = {1, 2, 4};  // of a micro-batch
  std::vector<int> tensor_parallel = {1};
  program::DType dtype = program::DType::f32;
  plan::Optimizer optimizer = plan::Optimizer::adamw;
  std::string cluster = {};  // that the ranks stand on; empty: this host, where all of them do
  int threads = 0;           // per rank; 0: cores / ranks
  Seconds segment_time = Seconds(1.5);     // spent on each number of samples
  Bytes largest = Bytes(32e6);             // collective
  Seconds collective_time = Seconds(0.2);  // spent on each kind and size
};

/// Every rank of the environment calls it; all get the same profile (times are means over ranks of
/// each rank's median). Throws InputError for a model without blocks.
costs::Profile measure_profile(const model::ModelSpec& model, const ProfileSettings& settings,
                               const Environment& environment);

}  // namespace rehearse::runtime
