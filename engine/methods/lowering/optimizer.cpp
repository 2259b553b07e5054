#include "engine/methods/lowering/optimizer.h"

#include <string>
#include <utility>
#include <vector>

#include "engine/tensors/variance.h"

namespace rehearse {

void OptimizerOps::declare(Bucket& bucket, std::int64_t elements) {
  const auto state = [&](const char* prefix) {
    return role_.storage({.name = prefix + bucket.name, .life = Life::state, .elements = elements});
  };
  bucket.views.moment1 = state("M.");
  if (plan_.optimizer == Optimizer::adamw) bucket.views.moment2 = state("V.");
  if (plan_.precision != DType::f32) bucket.views.master = state("master.");
  if (plan_.precision == DType::f16)
    scale_ = role_.storage(
        {.name = "scale", .life = Life::state, .elements = 2, .versions = scale_age_});
}

Id OptimizerOps::norm() {
  return role_.storage({.name = "norm", .life = Life::buffer, .elements = 1});
}

Ref OptimizerOps::scale() const {
  return {.view = scale_, .slot = Slot::scale, .mode = Mode::read, .age = scale_age_};
}

int OptimizerOps::stride(const Bucket& bucket, const ModelSpec& model) const {
  std::vector<std::int64_t> elements;
  for (Id group : bucket.groups) elements.push_back(elements_of(model.groups[group], plan_.tp));
  return observe_stride(elements, plan_.observe);
}

void OptimizerOps::observe(const Bucket& bucket, Ref grad, std::int64_t elements, int stride,
                           int shift) {
  if (plan_.observe == 0 || bucket.tied_copy) return;  // the embedding's own counts
  const Id variance = role_.storage({.name = "variance." + bucket.name,
                                     .life = Life::state,
                                     .elements = 1 + 2 * observed_entries(elements, stride)});
  grad.slot = Slot::source;
  grad.mode = Mode::read;
  std::vector<Ref> refs{grad,
                        {.view = variance,
                         .slot = Slot::target,
                         .mode = Mode::add,
                         .age = 1,
                         .layout = {.shard = grad.layout.shard}}};
  // A step that overflows is not observed; the others have their loss scale taken out.
  if (plan_.precision == DType::f16) {
    refs.push_back({.view = norm(), .slot = Slot::norm, .mode = Mode::read});
    refs.push_back(scale());
  }
  role_.op("compute", Kernel{.kind = Local::observe, .stride = stride}, std::move(refs), shift);
}

void OptimizerOps::update(const Bucket& bucket, Ref weight, Ref grad, int shift, int age) {
  weight.slot = Slot::param;
  weight.mode = Mode::add;
  weight.age = age;
  grad.slot = Slot::grad;
  grad.mode = Mode::read;
  std::vector<Ref> refs{weight, grad};
  const auto state = [&](Id view, Slot slot) {
    if (view != none)
      refs.push_back({.view = view,
                      .slot = slot,
                      .mode = Mode::add,
                      .age = age,
                      .layout = {.shard = weight.layout.shard}});
  };
  state(bucket.views.moment1, Slot::moment1);
  state(bucket.views.moment2, Slot::moment2);
  state(bucket.views.master, Slot::master);
  if (needs_norm()) refs.push_back({.view = norm(), .slot = Slot::norm, .mode = Mode::read});
  if (plan_.precision == DType::f16) refs.push_back(scale());
  role_.op("compute", Update{}, std::move(refs), shift);
}

void OptimizerOps::rescale(int shift) {
  if (plan_.precision != DType::f16) return;
  role_.op("compute", Kernel{.kind = Local::rescale},
           {{.view = norm(), .slot = Slot::source, .mode = Mode::read},
            {.view = scale_, .slot = Slot::target, .mode = Mode::add, .age = 1}},
           shift);
}

}  // namespace rehearse
