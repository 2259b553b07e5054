// What a stage keeps of its samples, and the role of replicas that take other numbers of them.
#include "engine/lowering/stage.h"

namespace rehearse {

std::string StageRole::name(const Plan& plan) const {
  return (plan.pp > 1 ? "stage" + std::to_string(stage) : "worker") +
         (kinds > 1 ? "." + std::to_string(kind) : "");
}

std::int64_t Stage::elements(const Activation& a, int samples) const {
  const std::int64_t tokens = std::int64_t{samples} * model_.seq_len;
  switch (a.size) {
    case Activation::Size::boundary:
      return tokens * model_.hidden;
    case Activation::Size::shard:
      return tokens * model_.hidden / plan_.tp;
    case Activation::Size::saved:
      return saved_bytes(model_, a.segment, samples, plan_.tp, plan_.precision);
    case Activation::Size::stats:
      return tokens * 3;
    case Activation::Size::all_stats:
      return tokens * 3 * plan_.tp;
  }
  return 0;
}

Id Stage::activation(Activation a, std::string name, DType dtype, int indices) {
  const std::size_t known = role_.role().views.size();
  a.view = role_.storage({.name = std::move(name),
                          .dtype = dtype,
                          .elements = elements(a, who_.samples),
                          .indices = indices});
  if (a.view == known) activations_.push_back(a);
  return a.view;
}

Role Stage::as(const StageRole& who) const {
  Role role = role_.role();
  role.name = who.name(plan_), role.ranks = who.ranks;
  for (const Activation& a : activations_) {
    View& view = role.views[a.view];
    view.end = role.storages[view.storage].elements = elements(a, who.samples);
  }
  const auto meet = [&](auto& transfer) { transfer.peer += static_cast<Id>(who.kind - who_.kind); };
  for (Op& op : role.ops)
    std::visit(
        overloaded{[&](Compute& compute) { compute.samples = who.samples; },
                   [&](Send& send) { meet(send); }, [&](Recv& recv) { meet(recv); }, [](auto&) {}},
        op.work);
  return role;
}

/// A boundary activation or gradient of this role, one instance a micro-batch (twice that when
/// forward and backward materialise it separately).
Id Stage::boundary(Kept what, Id segment, bool shard, bool per_pass) {
  static constexpr const char* prefixes[]{"x", "y", "dx", "dy", "xg", "dxg"};
  Id& view = kept_[static_cast<std::size_t>(what)][segment];
  if (view != none) return view;
  return view = activation({.size = shard ? Activation::Size::shard : Activation::Size::boundary},
                           prefixes[static_cast<std::size_t>(what)] + std::to_string(segment),
                           plan_.precision, plan_.micro_batches * (per_pass ? 2 : 1));
}

Id Stage::saved(Id segment) {
  Id& view = kept_[static_cast<std::size_t>(Kept::saved)][segment];
  if (view != none) return view;
  return view = activation({.segment = segment, .size = Activation::Size::saved},
                           "saved" + std::to_string(segment), DType::u8, plan_.micro_batches);
}

}  // namespace rehearse
