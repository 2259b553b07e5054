// PipeDream (Harlap et al. 2018; Narayanan et al., SOSP 2019): 1F1B without a flush. A stage
// updates its weights as soon as it has the gradient of a step, and keeps each older version that a
// step in flight has read (weight stashing): forward and backward of a step read the same version.
// In the paper a step is one micro-batch, so stage s of S has S - s versions, and the gradient of
// its weights is S - s - 1 steps late; the last stage's is not late.
//
//   S = 3, M = 1; F, B: forward and backward of a step; *: its update follows
//   stage 0   F0 F1 F2 .  .  B0*F3 .  B1*F4 .  B2*     F3 reads what the update of step 0 wrote
//   stage 1   .  F0 F1 .  B0*F2 .  B1*F3 .  B2*F4
//   stage 2   .  .  F0 B0*.  F1 B1*.  F2 B2*.  F3
//
// With M micro-batches a step, a stage reads the newest version that its first forward finds. With
// M >= S that differs from PipeDream-2BW at the last stage alone. Tied embeddings, a global norm
// and a loss scale join all stages: then all update when the first stage has its gradient, and read
// the version that it reads.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "engine/methods/lowering/exchange/replicated.h"
#include "engine/methods/strategy.h"
#include "engine/program/program_tables.h"

namespace rehearse::methods {
namespace {

/// Steps for which a stage is behind when it starts the backward of a step: ceil((S - s - 1) / M).
int late_by(const plan::Plan& plan, int stage) {
  const int ahead = plan.mesh.pp - stage - 1, m = plan.schedule.micro_batches;
  return (ahead + m - 1) / m;
}

class Stashes final : public Replicated {
  int weight_versions(const plan::Plan& plan, const model::ModelSpec& model,
                      int stage) const override {
    return 1 + late_by(plan, joins_stages(plan, model) ? 0 : stage);
  }
  /// Joined stages update at the end of the iteration in which the first one has its gradient. A
  /// later stage has begun the gradients of later steps by then.
  int grad_versions(const plan::Plan& plan, const model::ModelSpec& model,
                    int stage) const override {
    const int ahead = plan.mesh.pp - stage - 1, m = plan.schedule.micro_batches;
    return joins_stages(plan, model) ? 1 + (late_by(plan, 0) * m + m - 1 - ahead) / m : 1;
  }
  int scale_age(const plan::Plan& plan) const override { return 1 + late_by(plan, 0); }
};

template <bool Joined>
std::vector<Action> actions_of(const plan::Plan& plan, int stage) {
  const int m = plan.schedule.micro_batches, ahead = plan.mesh.pp - stage - 1;
  std::vector<Action> actions;
  for (int k = 0; k < m; ++k) {
    actions.push_back({.pass = program::Pass::forward, .microbatch = k});
    // The backward of the micro-batch that went forward `ahead` micro-batches before.
    const int shift = k < ahead ? (ahead - k + m - 1) / m : 0;
    const int microbatch = k - ahead + shift * m;
    actions.push_back({.pass = program::Pass::backward, .microbatch = microbatch, .shift = shift});
    if (!Joined && microbatch == m - 1) actions.back().update = shift;
  }
  if (Joined) actions.back().update = late_by(plan, 0);
  return actions;
}

template <bool Joined>
constexpr PassOrder stashing{
    .actions = actions_of<Joined>,
    .in_flight = [](const plan::Plan& plan, int stage) { return plan.mesh.pp - stage; }};

/// Where a step begins before its micro-batches of the step before are over, what a step keeps for
/// its backward has as many versions as steps are in flight.
LoweredProgram lower_in_flight(const plan::Plan& plan, const model::ModelSpec& model) {
  LoweredProgram lowered = lower_stages(plan, model);
  // Where all micro-batches of a step are in flight at most once, instances do not meet.
  if (plan.schedule.micro_batches >= plan.mesh.pp) return lowered;
  for (program::Role& role : lowered.program.roles) {
    std::map<std::pair<Id, int>, std::pair<int, int>> shifts;  // of the ops of each instance
    for (const program::Op& op : role.ops)
      for (const program::Ref& ref : op.refs) {
        const Id storage = role.views[ref.view].storage;
        if (role.storages[storage].life != program::Life::value) continue;
        const int shift = op.shift;
        auto& [least, most] = shifts.try_emplace({storage, ref.index}, shift, shift).first->second;
        least = std::min(least, shift), most = std::max(most, shift);
      }
    for (const auto& [instance, of_ops] : shifts) {
      program::Storage& storage = role.storages[instance.first];
      if (of_ops.first == of_ops.second || storage.elements == 0) continue;
      storage.versions = std::max(storage.versions, 1 + of_ops.second - of_ops.first);
    }
  }
  return lowered;
}

const Register pipedream(
    "pipedream",
    {.summary = "pipeline without flush, each stage updates at once and stashes older weights",
     .source = "Narayanan et al., SOSP 2019",
     .combines = {.pp = true, .tp = true, .shares = true, .offload = false},
     .pp = 4,
     .check =
         [](const plan::Plan& plan, const model::ModelSpec&) {
           constexpr int most = program::most_shift;
           if (late_by(plan, 0) > most)
             refuse("micro_batches", std::to_string(plan.schedule.micro_batches),
                    fmt::format("the first of {} stages would be {} steps behind, at most {} are "
                                "possible; nearest: {}",
                                plan.mesh.pp, late_by(plan, 0), most,
                                (plan.mesh.pp - 1 + most - 1) / most));
         },
     .order =
         [](const plan::Plan& plan, const model::ModelSpec& model) {
           return Stashes::joins_stages(plan, model) ? stashing<true> : stashing<false>;
         },
     .sync = [](const plan::Plan&) -> const GradientSync& {
       static const Stashes sync;
       return sync;
     },
     .lower = lower_in_flight});

}  // namespace
}  // namespace rehearse::methods
