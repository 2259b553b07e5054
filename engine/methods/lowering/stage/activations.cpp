#include "engine/methods/lowering/stage/activations.h"

#include <algorithm>
#include <array>
#include <utility>

namespace rehearse::methods {
namespace {

constexpr std::array exchanged_names{"kv",  "qkv",   "qkvh", "ah",      "a",        "da",
                                     "dah", "dqkvh", "dqkv", "ring.kv", "ring.dkv", "ring.part"};
constexpr std::array prefixes{"x",   "y",  "dx", "dy", "xg",
                              "dxg", "xr", "yr", "xrg"};  // [Boundary]: start of names

}  // namespace

Activations::Activations(program::RoleBuilder& role, const plan::Plan& plan,
                         const model::ModelSpec& model, const StageRole& who)
    : role_(role),
      plan_(plan),
      model_(model),
      who_(who),
      split_(model::TensorSplit(plan.mesh.tp, plan.mesh.sequence_parallel && plan.mesh.tp > 1,
                                plan.mesh.cp, !plan.mesh.rings())
                 .in_fp8(plan.fp8)),
      boundaries_(prefixes.size(), std::vector<Id>(model.segments.size() + 1, none)),
      saved_(model.segments.size(), none),
      exchanged_(exchanged_names.size(), std::vector<Id>(model.segments.size() + 1, none)) {}

std::int64_t Activations::elements(const Sized& s, int samples) const {
  const std::int64_t tokens = std::int64_t{samples} * model_.seq_len / plan_.mesh.cp;
  const std::int64_t queries = tokens * query_width(model_) / plan_.mesh.tp;
  const std::int64_t keys = tokens * key_width(model_) / plan_.mesh.tp;
  switch (s.size) {
    case Size::boundary:
      return tokens * model_.hidden;
    case Size::shard:
      return tokens * model_.hidden / plan_.mesh.tp;
    case Size::saved:
      return saved_bytes(model_, s.segment, samples, split_, plan_.precision);
    case Size::stats:
    case Size::all_stats:
      return tokens * loss_numbers(model_, plan_.mesh.tp, size_of(plan_.precision)) *
             (s.size == Size::all_stats ? plan_.mesh.tp : 1);
    case Size::queries:
      return queries;
    case Size::keys:
      return 2 * keys;
    case Size::both:
      return queries + 2 * keys;
  }
  return 0;
}

Id Activations::add(Sized sized, program::Storage storage) {
  storage.elements = elements(sized, who_.samples);
  sized.view = role_.storage(std::move(storage));
  sized_.push_back(sized);
  return sized.view;
}

Activations::Moved Activations::moved(Id view) {
  const auto [known, fresh] = moved_.try_emplace(view);
  if (!fresh) return known->second;
  const Sized sized = *std::ranges::find(sized_, view, &Sized::view);
  const program::Storage& of = role_.role().storages[role_.role().views[view].storage];
  program::Storage host = of, back = of;
  host.name += ".host", host.place = program::Place::host;
  back.name += ".back";
  return known->second = {.host = add(sized, std::move(host)), .back = add(sized, std::move(back))};
}

Id Activations::boundary(Boundary what, Id segment, bool shard, bool per_pass) {
  const auto at = static_cast<std::size_t>(what);
  Id& view = boundaries_[at][segment];
  if (view == none)
    view =
        add({.size = shard ? Size::shard : Size::boundary}, prefixes[at] + std::to_string(segment),
            plan_.precision, plan_.schedule.micro_batches * (per_pass ? 2 : 1));
  return view;
}

Id Activations::saved(Id segment, bool per_pass) {
  Id& view = saved_[segment];
  if (view == none)
    view = add({.size = Size::saved, .segment = segment}, "saved" + std::to_string(segment),
               program::DType::u8, plan_.schedule.micro_batches * (per_pass ? 2 : 1));
  return view;
}

Activations::Size Activations::size_of_exchanged(Exchanged what) {
  switch (what) {
    case Exchanged::kv:
    case Exchanged::ring_kv:
    case Exchanged::ring_grad:
    case Exchanged::ring_part:
      return Size::keys;
    case Exchanged::output_heads:
    case Exchanged::output:
    case Exchanged::grad:
    case Exchanged::grad_heads:
      return Size::queries;
    case Exchanged::qkv:
    case Exchanged::heads:
    case Exchanged::grad_qkvh:
    case Exchanged::grad_qkv:
      break;
  }
  return Size::both;
}

Id Activations::exchanged(Exchanged what, Id segment, bool per_pass) {
  const auto at = static_cast<std::size_t>(what);
  Id& view = exchanged_[at][segment];
  if (view == none)
    view = add({.size = size_of_exchanged(what)}, exchanged_names[at] + std::to_string(segment),
               plan_.precision, plan_.schedule.micro_batches * (per_pass ? 2 : 1));
  return view;
}

Id Activations::buffer(Exchanged what, int instances) {
  const auto at = static_cast<std::size_t>(what);
  Id& view = exchanged_[at].back();
  if (view == none)
    view = add({.size = size_of_exchanged(what)}, {.name = exchanged_names[at],
                                                   .life = program::Life::buffer,
                                                   .dtype = plan_.precision,
                                                   .indices = instances});
  return view;
}

Id Activations::stats() {
  if (stats_ == none)
    stats_ = add({.size = Size::stats}, "stats", program::DType::f32, plan_.schedule.micro_batches);
  return stats_;
}

Id Activations::all_stats() {
  if (all_stats_ == none)
    all_stats_ = add({.size = Size::all_stats}, "stats.all", program::DType::f32,
                     plan_.schedule.micro_batches);
  return all_stats_;
}

program::Role Activations::as(const StageRole& who) const {
  program::Role role = role_.role();
  role.name = who.name(plan_), role.ranks = who.ranks;
  for (const Sized& s : sized_) {
    program::View& view = role.views[s.view];
    view.end = role.storages[view.storage].elements = elements(s, who.samples);
  }
  const auto meet = [&](auto& transfer) { transfer.peer += static_cast<Id>(who.kind - who_.kind); };
  for (program::Op& op : role.ops)
    std::visit(
        program::overloaded{[&](program::Compute& compute) { compute.samples = who.samples; },
                            [&](program::Send& send) { meet(send); },
                            [&](program::Recv& recv) { meet(recv); }, [](auto&) {}},
        op.work);
  return role;
}

}  // namespace rehearse::methods
