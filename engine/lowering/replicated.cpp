// Weights and gradients whole on every data-parallel rank: a bucket's gradient is all-reduced as
// soon as backward of the last micro-batch has completed it, under the rest of backward (PyTorch
// DDP, Li et al., VLDB 2020; Horovod's tensor fusion).
#include "engine/lowering/replicated.h"

namespace rehearse {

void Replicated::declare(Stage& stage, const Bucket& b) const {
  RoleBuilder& role = stage.role();
  const DType dtype = stage.plan().precision;
  role.storage({.name = "W." + b.name,
                .life = Life::state,
                .dtype = dtype,
                .elements = b.elements,
                .versions = weight_versions(stage.plan())});
  role.storage({.name = "G." + b.name,
                .life = Life::buffer,
                .dtype = dtype,
                .elements = b.elements,
                .versions = grad_versions(stage.plan(), stage.model())});
  declare_group_views(stage, b, "W.", "W." + b.name);
  declare_group_views(stage, b, "G.", "G." + b.name);
  if (owns_optimizer()) stage.declare_optimizer(b, b.elements);
}

Ref Replicated::param(const Stage& stage, Id group, Pass, int) const {
  return stage.ref(stage.weight(group), Slot::param, Mode::read, 0, weight_age(stage.plan()));
}

void Replicated::reduce(Stage& stage, const Bucket& b, int, bool last, int shift) const {
  if (!last) return;
  stage.reduce_model_axes(b, "G." + b.name, 0, shift);
  exchange(stage, b, shift);
}

void Replicated::exchange(Stage& stage, const Bucket& b, int shift) const {
  if (!stage.dp()) return;
  stage.role().op(
      "dp", stage.collective(stage.axis_channel(stage.dp()), Move::all_reduce),
      {stage.ref("G." + b.name, Slot::source, Mode::read, 0, 0, {.partial = stage.dp()}),
       stage.ref("G." + b.name, Slot::target, Mode::write)},
      shift);
}

void Replicated::finish(Stage& stage, int shift) const {
  std::vector<std::pair<const Bucket*, Ref>> grads;
  for (const Bucket& b : stage.buckets())
    grads.emplace_back(&b, stage.ref("G." + b.name, Slot::grad, Mode::read));
  stage.emit_norm(grads, 0, shift);
  for (const auto& [b, grad] : grads)
    stage.emit_update(*b, stage.ref("W." + b->name, Slot::param, Mode::add), grad, shift);
  stage.emit_rescale(shift);
}

void declare_group_views(Stage& stage, const Bucket& b, const std::string& prefix,
                         const std::string& storage) {
  RoleBuilder& role = stage.role();
  const Id id = role.role().views[role.view(storage)].storage;
  for (std::size_t i = 0; i < b.groups.size(); ++i)
    role.view({.name = prefix + stage.model().groups[b.groups[i]].name,
               .storage = id,
               .begin = b.begin[i],
               .end = i + 1 < b.groups.size() ? b.begin[i + 1] : b.elements});
}

const GradientSync& replicated() {
  static const Replicated sync;
  return sync;
}

}  // namespace rehearse
