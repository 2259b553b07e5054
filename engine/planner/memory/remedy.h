// Changes of a plan that make it fit into memory. Every change that is recommended was compiled,
// linked and checked against the memory of devices and hosts before.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::planner {

/// A change of a plan that makes it fit.
struct Remedy {
  std::vector<std::string> changes = {};  // in the form of --set: "method.recompute=true"
  std::int64_t need = 0;                  // bytes of the fullest device after the change
};
/// The largest number of changed plans that find_remedy compiles. It does not compile plans whose
/// lower bound of memory is too large (bounds.h), and plans with more than `most_tried_passes`
/// passes (plan::passes_of), unless the original plan has as many when it recomputes.
inline constexpr int most_remedies = 33;
inline constexpr std::int64_t most_tried_passes = 40'000;
/// A changed plan, and its changes in the form of --set.
struct Trial {
  plan::Plan plan = {};
  std::vector<std::string> changes = {};
};
/// The first change that makes the plan fit, in this order: more micro-batches, recomputation, a
/// higher ZeRO level, combinations of these, activations or the optimizer on the host with as few
/// of these as possible, another mesh of the same world, there too with as few of all these as
/// possible, a smaller batch. Of micro-batches that are only needed with another change, the
/// fewest. None when no change fits. A `start` that is itself changed is tried first.
/// `keep_method`: only changes that keep the method's name.
std::optional<Remedy> find_remedy(const Trial& start, const model::ModelSpec& model,
                                  const cluster::Cluster& cluster, bool keep_method = false);

}  // namespace rehearse::planner
