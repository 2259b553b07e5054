// PipeDream-2BW: 1F1B without a flush. Two versions of the weights: the gradient of a step is taken
// at the version before the newest, W(t+1) = W(t) - nu grad f(W(t-1)), so a stage goes on with the
// next batch while late gradients of this one are still on their way (Narayanan et al., ICML 2021).
// In an iteration the last `warm-up` backwards belong to the step before.
#include <fmt/format.h>

#include "engine/methods/lowering/replicated.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

/// Copies of tied embeddings and a global norm are complete only when the first stage has done its
/// last backward, long after the last stage began the next batch: the sums then get a second buffer
/// and the update moves to the end of the next batch, just before its weights are read. Otherwise
/// it waits for one forward only.
bool late(const plan::Plan& plan, const model::ModelSpec& model) {
  return plan.mesh.pp > 1 && (model.tied || plan.clip || plan.precision == program::DType::f16);
}

class TwoVersions final : public Replicated {
  int weight_versions(const plan::Plan&) const override { return 2; }
  int weight_age(const plan::Plan&) const override { return 2; }
  int grad_versions(const plan::Plan& plan, const model::ModelSpec& model) const override {
    return late(plan, model) ? 2 : 1;
  }
};

template <bool Late>
std::vector<Action> actions_of(const plan::Plan& plan, int stage) {
  const int m = plan.schedule.micro_batches, warm_up = plan.mesh.pp - stage - 1;
  std::vector<Action> actions;
  for (int k = 0; k < m; ++k) {
    actions.push_back({.pass = program::Pass::forward, .microbatch = k});
    // Used before the next backward writes over them.
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
     .combines = {.pp = true, .tp = true, .shares = true},
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
           return late(plan, model) ? without_flush<true> : without_flush<false>;
         },
     .sync = [](const plan::Plan&) -> const GradientSync& {
       static const TwoVersions sync;
       return sync;
     }});

}  // namespace
}  // namespace rehearse::methods
