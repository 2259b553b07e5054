#include "engine/methods/lowering/optimizer.h"

#include <string>
#include <utility>
#include <vector>

#include "engine/tensors/variance.h"

namespace rehearse::methods {

void OptimizerOps::declare(Bucket& bucket, std::int64_t elements) {
  const program::Place place = on_host() ? program::Place::host : program::Place::device;
  const auto state = [&](const char* prefix, program::DType dtype) {
    return role_.storage({.name = prefix + bucket.name,
                          .life = program::Life::state,
                          .dtype = dtype,
                          .elements = elements,
                          .place = place});
  };
  bucket.views.moment1 = state("M.", plan_.moment_type());
  if (plan_.optimizer == plan::Optimizer::adamw)
    bucket.views.moment2 = state("V.", plan_.moment_type());
  if (plan_.has_master()) bucket.views.master = state("master.", program::DType::f32);
  if (on_host()) {
    const auto copy = [&](const char* prefix, program::DType dtype) {
      return role_.storage({.name = prefix + bucket.name,
                            .life = program::Life::buffer,
                            .dtype = dtype,
                            .elements = elements,
                            .place = place});
    };
    const program::Role& role = role_.role();
    bucket.views.host_grad = copy("Gh.", role.storages[role.views[bucket.views.sum].storage].dtype);
    bucket.views.host_weight = copy("Wh.", plan_.precision);
  }
  if (plan_.precision == program::DType::f16)
    scale_ = role_.storage(
        {.name = "scale", .life = program::Life::state, .elements = 2, .versions = scale_age_});
}

Id OptimizerOps::norm() {
  return role_.storage({.name = "norm", .life = program::Life::buffer, .elements = 1});
}

program::Ref OptimizerOps::scale() const {
  return {
      .view = scale_, .slot = program::Slot::scale, .mode = program::Mode::read, .age = scale_age_};
}

int OptimizerOps::stride(const Bucket& bucket, const model::ModelSpec& model) const {
  std::vector<std::int64_t> elements;
  for (Id group : bucket.groups)
    elements.push_back(elements_of(model.groups[group], plan_.mesh.tp));
  return tensors::observe_stride(elements, plan_.exchange.observe);
}

void OptimizerOps::observe(const Bucket& bucket, program::Ref grad, std::int64_t elements,
                           int stride, int shift) {
  if (plan_.exchange.observe == 0 || bucket.tied_copy) return;  // the first stage's copy counts
  const Id variance =
      role_.storage({.name = "variance." + bucket.name,
                     .life = program::Life::state,
                     .elements = 1 + 2 * program::observed_entries(elements, stride)});
  grad.slot = program::Slot::source;
  grad.mode = program::Mode::read;
  std::vector<program::Ref> refs{grad,
                                 {.view = variance,
                                  .slot = program::Slot::target,
                                  .mode = program::Mode::add,
                                  .age = 1,
                                  .layout = {.shard = grad.layout.shard}}};
  // The kernel skips steps that overflow (norm not finite) and divides by the loss scale.
  if (plan_.precision == program::DType::f16) {
    refs.push_back({.view = norm(), .slot = program::Slot::norm, .mode = program::Mode::read});
    refs.push_back(scale());
  }
  role_.op("compute", program::Kernel{.kind = program::KernelKind::observe, .stride = stride},
           std::move(refs), shift);
}

Id OptimizerOps::copy(const char* lane, program::Ref from, program::Ref to, int shift) {
  from.slot = program::Slot::source, from.mode = program::Mode::read;
  to.slot = program::Slot::target, to.mode = program::Mode::write;
  from.age = to.age = 0;
  return role_.op(lane, program::Copy{}, {from, to}, shift);
}

Id OptimizerOps::to_host(const Bucket& bucket, program::Ref grad, int shift) {
  if (!on_host()) return none;
  program::Ref received = grad;
  received.view = bucket.views.host_grad;
  return copy("d2h", grad, received, shift);
}

void OptimizerOps::update(const Bucket& bucket, program::Ref weight, program::Ref grad, int shift,
                          int age, program::Update how, Id changed) {
  const auto age_of = [&](Id view) { return view == changed ? 0 : age; };
  weight.slot = program::Slot::param;
  weight.mode = program::Mode::add;
  weight.age = age_of(weight.view);
  grad.slot = program::Slot::grad;
  grad.mode = program::Mode::read;
  const program::Ref on_device = weight;
  if (on_host()) {
    grad.view = bucket.views.host_grad;
    weight.view = bucket.views.host_weight;
    weight.mode = program::Mode::write, weight.age = 0;  // from the fp32 copy
  }
  std::vector<program::Ref> refs{weight, grad};
  const auto state = [&](Id view, program::Slot slot) {
    if (view != none)
      refs.push_back({.view = view,
                      .slot = slot,
                      .mode = program::Mode::add,
                      .age = age_of(view),
                      .layout = {.shard = weight.layout.shard, .own = weight.layout.own}});
  };
  state(bucket.views.moment1, program::Slot::moment1);
  state(bucket.views.moment2, program::Slot::moment2);
  state(bucket.views.master, program::Slot::master);
  if (needs_norm())
    refs.push_back({.view = norm(), .slot = program::Slot::norm, .mode = program::Mode::read});
  if (plan_.precision == program::DType::f16) refs.push_back(scale());
  role_.op(lane(), how, std::move(refs), shift);
  if (on_host()) copy("h2d", weight, on_device, shift);
}

void OptimizerOps::rescale(int shift) {
  if (plan_.precision != program::DType::f16) return;
  role_.op("compute", program::Kernel{.kind = program::KernelKind::rescale},
           {{.view = norm(), .slot = program::Slot::source, .mode = program::Mode::read},
            {.view = scale_, .slot = program::Slot::target, .mode = program::Mode::add, .age = 1}},
           shift);
}

}  // namespace rehearse::methods
