// What every method does with gradients once backward has left them: sums over tensor ranks and
// tied copies, the global norm, optimizer state and updates, dynamic loss scaling.
#include "engine/lowering/stage.h"
#include "engine/variance.h"

namespace rehearse {

void Stage::reduce_model_axes(const Bucket& bucket, const std::string& grads, int index,
                              int shift) {
  const Axes also = dp_ | (bucket.tied ? tied_ : Axes{0});
  if (tp_ && bucket.whole_begin < bucket.begin.back()) {
    const std::string whole = grads + ".whole";
    const Id storage = role_.role().views[role_.view(grads)].storage;
    // With the padding, which belongs to the last group's gradient.
    role_.view(
        {.name = whole, .storage = storage, .begin = bucket.whole_begin, .end = bucket.elements});
    role_.op("tp", Collective{.channel = axis_channel(tp_), .move = Move::all_reduce},
             {ref(whole, Slot::source, Mode::read, index, 0, {.partial = also | tp_}),
              ref(whole, Slot::target, Mode::write, index, 0, {.partial = also})},
             shift);
  }
  if (bucket.tied)
    role_.op("tied", Collective{.channel = channel(program_, "tied"), .move = Move::all_reduce},
             {ref(grads, Slot::source, Mode::read, index, 0, {.partial = also}),
              ref(grads, Slot::target, Mode::write, index, 0, {.partial = dp_})},
             shift);
}

void Stage::emit_norm(const std::vector<std::pair<const Bucket*, Ref>>& grads, Axes also,
                      int shift) {
  if (!needs_norm()) return;
  const Axes over = pp_ | tp_ | also;
  role_.storage({.name = "norm", .life = Life::buffer, .elements = 1});
  bool first = true;
  auto measure = [&](Ref source, double scale) {
    source.slot = Slot::source;
    source.mode = Mode::read;
    role_.op("compute", Kernel{.kind = Local::measure, .scale = scale},
             {source,
              ref("norm", Slot::target, first ? Mode::write : Mode::add, 0, 0, {.partial = over})},
             shift);
    first = false;
  };
  for (const auto& [bucket, grad] : grads) {
    const View view = role_.role().views[grad.view];
    // Each gradient counts once: copies on tensor ranks share their weight, a tied copy has none.
    const double copies = 1.0 / plan_.tp;
    if (bucket->tied_copy) continue;
    if (!tp_ || bucket->whole_begin == bucket->begin.back()) {
      measure(grad, 1);
    } else if (bucket->whole_begin == 0) {
      measure(grad, copies);
    } else {
      for (const bool whole : {false, true}) {
        Ref part = grad;
        part.view = role_.view({.name = view.name + (whole ? ".norm_whole" : ".norm_split"),
                                .storage = view.storage,
                                .begin = whole ? bucket->whole_begin : 0,
                                .end = whole ? bucket->begin.back() : bucket->whole_begin});
        measure(part, whole ? copies : 1);
      }
    }
  }
  if (over)
    role_.op("norm", Collective{.channel = axis_channel(over), .move = Move::all_reduce},
             {ref("norm", Slot::source, Mode::read, 0, 0, {.partial = over}),
              ref("norm", Slot::target, Mode::write)},
             shift);
}

void Stage::declare_optimizer(const Bucket& bucket, std::int64_t elements) {
  auto state = [&](const char* prefix) {
    role_.storage({.name = prefix + bucket.name, .life = Life::state, .elements = elements});
  };
  state("M.");
  if (plan_.optimizer == Optimizer::adamw) state("V.");
  if (plan_.precision != DType::f32) state("master.");
  if (plan_.precision == DType::f16)
    role_.storage(
        {.name = "scale", .life = Life::state, .elements = 2, .versions = sync_.scale_age(plan_)});
}

int Stage::observe_stride(const Bucket& bucket) const {
  std::vector<std::int64_t> elements;
  for (Id group : bucket.groups) elements.push_back(elements_of(model_.groups[group], plan_.tp));
  return rehearse::observe_stride(elements, plan_.observe);
}

void Stage::emit_observe(const Bucket& bucket, Ref grad, int shift) {
  if (plan_.observe == 0 || bucket.tied_copy) return;  // the embedding's own counts
  const int stride = observe_stride(bucket);
  const std::int64_t observed = observed_entries(elements_of(program_, role_.role(), grad), stride);
  const std::string name = "variance." + bucket.name;
  role_.storage({.name = name, .life = Life::state, .elements = 1 + 2 * observed});
  grad.slot = Slot::source;
  grad.mode = Mode::read;
  const Layout layout{.shard = grad.layout.shard};
  std::vector<Ref> refs{grad, ref(name, Slot::target, Mode::add, 0, 1, layout)};
  // A step that overflows is not observed; the others have their loss scale taken out.
  if (plan_.precision == DType::f16) {
    refs.push_back(ref("norm", Slot::norm, Mode::read));
    refs.push_back(ref("scale", Slot::scale, Mode::read, 0, sync_.scale_age(plan_)));
  }
  role_.op("compute", Kernel{.kind = Local::observe, .stride = stride}, std::move(refs), shift);
}

void Stage::emit_update(const Bucket& bucket, Ref weight, Ref grad, int shift) {
  emit_observe(bucket, grad, shift);
  weight.slot = Slot::param;
  weight.mode = Mode::add;
  weight.age = 1;
  grad.slot = Slot::grad;
  grad.mode = Mode::read;
  const Layout layout{.shard = weight.layout.shard};
  std::vector<Ref> refs{weight, grad,
                        ref("M." + bucket.name, Slot::moment1, Mode::add, 0, 1, layout)};
  if (plan_.optimizer == Optimizer::adamw)
    refs.push_back(ref("V." + bucket.name, Slot::moment2, Mode::add, 0, 1, layout));
  if (plan_.precision != DType::f32)
    refs.push_back(ref("master." + bucket.name, Slot::master, Mode::add, 0, 1, layout));
  if (needs_norm()) refs.push_back(ref("norm", Slot::norm, Mode::read));
  if (plan_.precision == DType::f16)
    refs.push_back(ref("scale", Slot::scale, Mode::read, 0, sync_.scale_age(plan_)));
  role_.op("compute", Update{}, std::move(refs), shift);
}

void Stage::emit_rescale(int shift) {
  if (plan_.precision != DType::f16) return;
  role_.op("compute", Kernel{.kind = Local::rescale},
           {ref("norm", Slot::source, Mode::read), ref("scale", Slot::target, Mode::add, 0, 1)},
           shift);
}

}  // namespace rehearse
