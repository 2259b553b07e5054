// PipeDream-2BW (Narayanan et al., ICML 2021): 1F1B without a flush and with two versions of the
// weights. The gradient of a step is taken at the version before the newest:
// W(t+1) = W(t) - nu grad f(W(t-1)). So a stage begins the next step while backwards of this step
// are still to come: in an iteration, the last S - s - 1 backwards of stage s have shift 1.
//
//   S = 3, M = 4; F, B: step t; f, b: step t + 1; *: the update of step t follows
//   stage 0   F0 F1 F2 .  .  B0 F3 B1 f0 B2 f1 B3 f2*b0 f3 b1
//   stage 1   .  F0 F1 .  B0 F2 B1 F3 B2 f0 B3 f1*b0 f2 b1 f3
//   stage 2   .  .  F0 B0 F1 B1 F2 B2 F3 B3 f0*b0 f1 b1 f2 b2
//
// The update of step t writes version t; the passes of step t + 1 all read version t - 1.
#include <fmt/format.h>

#include "engine/methods/lowering/exchange/replicated.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

/// Where updates join the stages, they come at the end of the next step, just before its weights
/// are read: the gradients are complete only after the last backward of the first stage, and by
/// then the last stage has long begun the next step. So the gradients get a second buffer.
/// Elsewhere an update comes one forward later.
class TwoVersions final : public Replicated {
  int weight_versions(const plan::Plan&, const model::ModelSpec&, int) const override { return 2; }
  int scale_age(const plan::Plan&) const override { return 2; }
  int grad_versions(const plan::Plan& plan, const model::ModelSpec& model, int) const override {
    return joins_stages(plan, model) ? 2 : 1;
  }
};

template <bool Late>
std::vector<Action> actions_of(const plan::Plan& plan, int stage) {
  const int m = plan.schedule.micro_batches, warm_up = plan.mesh.pp - stage - 1;
  std::vector<Action> actions;
  for (int k = 0; k < m; ++k) {
    actions.push_back({.pass = program::Pass::forward, .microbatch = k});
    // The update reads the gradients before the next backward overwrites them.
    if (!Late && k == warm_up) actions.back().update = 1;
    actions.push_back({.pass = program::Pass::backward,
                       .microbatch = (k - warm_up + m) % m,
                       .shift = k < warm_up ? 1 : 0});
  }
  if (Late) actions.back().update = 1;
  return actions;
}

template <bool Late>
constexpr PassOrder without_flush{
    .actions = actions_of<Late>,
    .in_flight = [](const plan::Plan& plan, int stage) { return plan.mesh.pp - stage; }};

const Register pipedream_2bw(
    "pipedream-2bw",
    {.summary = "pipeline without flush, two weight versions, gradients one step late",
     .source = "Narayanan et al., ICML 2021",
     .combines = {.pp = true, .tp = true, .shares = true, .offload = false},
     .pp = 4,
     .check =
         [](const plan::Plan& plan, const model::ModelSpec&) {
           if (plan.schedule.micro_batches < plan.mesh.pp)
             refuse("micro_batches", std::to_string(plan.schedule.micro_batches),
                    fmt::format("pipedream-2bw needs at least as many as stages; nearest: {}",
                                plan.mesh.pp));
         },
     .order =
         [](const plan::Plan& plan, const model::ModelSpec& model) {
           return TwoVersions::joins_stages(plan, model) ? without_flush<true>
                                                         : without_flush<false>;
         },
     .sync = [](const plan::Plan&) -> const GradientSync& {
       static const TwoVersions sync;
       return sync;
     }});

}  // namespace
}  // namespace rehearse::methods
