#include "engine/methods/lowering/updates.h"

#include <ranges>

namespace rehearse::methods {

void reduce_over_tensor_ranks(Stage& stage, Bucket& bucket, int index, int shift) {
  if (!stage.tp() || bucket.whole_begin == bucket.begin.back()) return;
  program::RoleBuilder& role = stage.role();
  const program::Axes also = bucket.tied ? tied_axis(stage.program()) : program::Axes{0};
  Id& whole = bucket.views.whole_grad;
  if (whole == none) {
    const program::View& grad = role.role().views[bucket.views.grad];
    // Includes the padding, which is part of the last group's gradient.
    whole = role.view({.name = grad.name + ".whole",
                       .storage = grad.storage,
                       .begin = bucket.whole_begin,
                       .end = bucket.elements});
  }
  role.op("tp", stage.collective(stage.axis_channel(stage.tp()), program::Move::all_reduce),
          {ref(whole, program::Slot::source, program::Mode::read, index, 0,
               stage.partial(also | stage.tp())),
           ref(whole, program::Slot::target, program::Mode::write, index, 0, stage.partial(also))},
          shift);
}

void reduce_over_copies(Stage& stage, Id view, int index, program::Layout after, int shift) {
  program::Layout before = after;
  before.partial |= tied_axis(stage.program());
  stage.role().op("tied",
                  stage.collective(channel(stage.program(), "tied"), program::Move::all_reduce),
                  {ref(view, program::Slot::source, program::Mode::read, index, 0, before),
                   ref(view, program::Slot::target, program::Mode::write, index, 0, after)},
                  shift);
}

void reduce_model_axes(Stage& stage, Bucket& bucket, int index, int shift) {
  reduce_over_tensor_ranks(stage, bucket, index, shift);
  if (bucket.tied) reduce_over_copies(stage, bucket.views.grad, index, stage.partial(), shift);
}

void emit_norm(Stage& stage, program::Layout shard, int shift) {
  if (!stage.optimizer().needs_norm()) return;
  program::RoleBuilder& role = stage.role();
  const program::Axes over = stage.pp() | stage.tp() | shard.shard;
  const Id norm = stage.optimizer().norm();
  bool first = true;
  const auto measure = [&](Id view, double scale) {
    role.op(stage.optimizer().lane(),
            program::Kernel{.kind = program::KernelKind::measure, .scale = scale},
            {ref(view, program::Slot::source, program::Mode::read, 0, 0, shard),
             ref(norm, program::Slot::target, first ? program::Mode::write : program::Mode::add, 0,
                 0, {.partial = over})},
            shift);
    first = false;
  };
  for (const Bucket& bucket : stage.buckets()) {
    const Id gradient = stage.optimizer().gradient(bucket);
    const program::View view = role.role().views[gradient];
    // Each gradient counts once: a group that all tensor ranks hold counts 1 / tp on each of them,
    // and a tied copy is skipped.
    const double copies = 1.0 / stage.plan().mesh.tp;
    if (bucket.tied_copy) continue;
    if (!stage.tp() || bucket.whole_begin == bucket.begin.back()) {
      measure(gradient, 1);
    } else if (bucket.whole_begin == 0) {
      measure(gradient, copies);
    } else {
      for (const bool whole : {false, true})
        measure(role.view({.name = view.name + (whole ? ".norm_whole" : ".norm_split"),
                           .storage = view.storage,
                           .begin = whole ? bucket.whole_begin : 0,
                           .end = whole ? bucket.begin.back() : bucket.whole_begin}),
                whole ? copies : 1);
    }
  }
  if (over)
    role.op(
        "norm",
        program::Collective{.channel = stage.axis_channel(over), .move = program::Move::all_reduce},
        {ref(norm, program::Slot::source, program::Mode::read, 0, 0, {.partial = over}),
         ref(norm, program::Slot::target, program::Mode::write)},
        shift);
}

void emit_update(Stage& stage, const Bucket& bucket, program::Layout shard, int shift,
                 program::Update how, Id changed) {
  OptimizerOps& optimizer = stage.optimizer();
  const program::Ref sum =
      ref(bucket.views.sum, program::Slot::grad, program::Mode::read, 0, 0, shard);
  if (stage.plan().exchange.observe > 0)
    optimizer.observe(bucket, sum, elements_of(stage.program(), stage.role().role(), sum),
                      optimizer.stride(bucket, stage.model()), shift);
  optimizer.update(
      bucket, ref(bucket.views.own_weight, program::Slot::param, program::Mode::add, 0, 0, shard),
      sum, shift, 1, how, changed);
}

void update_all(Stage& stage, program::Layout shard, int shift) {
  emit_norm(stage, shard, shift);
  for (const Bucket& bucket : stage.buckets()) emit_update(stage, bucket, shard, shift);
  stage.optimizer().rescale(shift);
}

Id gather_from(Stage& stage, program::Axes axes, program::Ref part, const Bucket& bucket, int index,
               int shift) {
  part.layout = {.shard = axes};
  const Id over = channel(stage.program(), axes == stage.shards() ? "dp.gather" : "shard.gather",
                          {.axes = axes});
  return stage.role().op(
      "dp.gather", stage.collective(over, program::Move::all_gather),
      {part, ref(bucket.views.weight, program::Slot::target, program::Mode::write, index)}, shift);
}

void gather_weights(Stage& stage, int shift) {
  for (const Bucket& bucket : std::ranges::reverse_view(stage.buckets()))
    gather_from(stage, stage.shards(),
                ref(bucket.views.own_weight, program::Slot::source, program::Mode::read), bucket, 0,
                shift);
}

}  // namespace rehearse::methods
