// What more of each resource would bring: the step time with a faster device, wider links, a
// shorter latency, a faster host, one at a time. The program and all decisions in it (algorithms of
// collectives, placement, shares) stay; only its prices change, and the dry run runs again.
#pragma once
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/costs.h"
#include "engine/execution/measure/metrics.h"
#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::execution {

/// Everything that the price of a program depends on, besides the program. The references must
/// outlive this object.
struct Pricing {
  const model::ModelSpec& model;
  const cluster::Cluster& cluster;
  std::vector<Id> rank_to_device = {};  // this and the rest: as in costs::Conditions
  plan::Optimizer optimizer = plan::Optimizer::adamw;
  const costs::Profile* profile = nullptr;
  std::vector<double> slow = {};
  std::vector<double> pace = {};

  costs::Costs costs(const link::OrderedProgram& linked) const {
    return {linked, model, cluster,
            costs::Conditions{.rank_to_device = rank_to_device,
                              .optimizer = optimizer,
                              .profile = profile,
                              .slow = slow,
                              .pace = pace}};
  }
};

/// How much more there is of a resource: a rate becomes 1.1 times as high, a time 1 / 1.1 of it.
inline constexpr double more = 1.1;

struct Gain {
  std::string resource = {};  // "A100 80GB: matrix rate"
  double seconds = 0;         // of a step with more of it
};

/// How many steps a run must go on after a step so that the step is like those in the middle of a
/// long run: later steps may overlap with it.
int overlapping_steps(const link::OrderedProgram& linked);

/// The mean step time of the dry run over the steady steps of a longer run, without random
/// disturbances, in seconds. Folds equal ranks where the program allows it.
double step_seconds(const link::OrderedProgram& linked, const costs::Costs& costs, Steps steps);

/// One entry for each resource that the program uses; the largest gain first, equal ones in the
/// order devices, links, latencies, host. `used`: [link] bytes a step (costs::Costs::link_bytes).
/// Throws InputError where Pricing is wrong.
std::vector<Gain> gains(const link::OrderedProgram& linked, const Pricing& pricing,
                        const std::vector<double>& used, Steps steps);

}  // namespace rehearse::execution
