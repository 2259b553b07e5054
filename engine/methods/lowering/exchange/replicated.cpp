#include "engine/methods/lowering/exchange/replicated.h"

#include "engine/methods/lowering/updates.h"

namespace rehearse::methods {

bool Replicated::joins_stages(const plan::Plan& plan, const model::ModelSpec& model) {
  return plan.mesh.pp > 1 && (model.tied || plan.clip || plan.precision == program::DType::f16);
}

void Replicated::declare(Stage& stage, Bucket& b) const {
  program::RoleBuilder& role = stage.role();
  b.views.weight = b.views.own_weight = role.storage({.name = "W." + b.name,
                                                      .life = program::Life::state,
                                                      .dtype = stage.plan().precision,
                                                      .elements = b.elements,
                                                      .versions = versions_on(stage)});
  b.views.grad = b.views.sum = role.storage(
      {.name = "G." + b.name,
       .life = stage.plan().keeps_gradients() ? program::Life::buffer : program::Life::value,
       .dtype = stage.plan().gradient_type(),
       .elements = b.elements,
       .versions = grad_versions(stage.plan(), stage.model(), stage.index())});
  stage.declare_groups(b);
  if (owns_optimizer()) stage.optimizer().declare(b, b.elements);
}

program::Ref Replicated::param(const Stage& stage, Id group, program::Pass, int) const {
  return ref(stage.weight(group), program::Slot::param, program::Mode::read, 0, versions_on(stage),
             stage.weights_layout());
}

void Replicated::reduce(Stage& stage, Bucket& b, int, bool last, int shift) const {
  if (!last) return;
  reduce_model_axes(stage, b, 0, shift);
  exchange(stage, b, shift);
  stage.to_host(b, {}, shift);
}

void Replicated::exchange(Stage& stage, const Bucket& b, int shift) const {
  if (stage.dp()) all_reduce(stage, b.views.grad, shift);
}

void Replicated::all_reduce(Stage& stage, Id view, int shift, program::When when) {
  stage.role().op(
      "dp", stage.collective(stage.axis_channel(stage.dp()), program::Move::all_reduce),
      {ref(view, program::Slot::source, program::Mode::read, 0, 0, {.partial = stage.dp()}),
       ref(view, program::Slot::target, program::Mode::write)},
      shift, when);
}

void Replicated::finish(Stage& stage, int shift) const { update_all(stage, {}, shift); }

const GradientSync& replicated() {
  static const Replicated sync;
  return sync;
}

}  // namespace rehearse::methods
