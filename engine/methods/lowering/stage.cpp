#include "engine/methods/lowering/stage.h"

#include <algorithm>
#include <iterator>

#include "engine/collectives/schedule.h"

namespace rehearse::methods {

Stage::Stage(program::Program& program, const plan::Plan& plan, const model::ModelSpec& model,
             const StageRole& who, const GradientSync& sync)
    : program_(program),
      plan_(plan),
      model_(model),
      sync_(sync),
      who_(who),
      role_(who.name(plan), who.ranks),
      pp_(axis_named(program, "pp")),
      dp_(gradient_axes(program)),
      shards_(plan.exchange.sharding.shard_group > 0 && axis_named(program, "shard") != 0
                  ? axis_named(program, "shard")
                  : dp_),
      tp_(axis_named(program, "tp")),
      cp_(axis_named(program, "cp")),
      activations_(role_, plan, model, who_),
      optimizer_(role_, plan, sync.scale_age(plan)),
      recomputed_(plan::recomputed(plan, model)),
      buckets_(make_buckets(program, plan, model, who.stage, sync)) {
  role_.lane("compute");
  layered_.resize(model.segments.size());
  if (plan.schedule.recompute && plan.schedule.recompute_unit == plan::RecomputeUnit::layer)
    for (const auto& chunk : plan.placement.stages)
      for (std::size_t i = 1; i < chunk.size(); ++i)
        if (model.segments[chunk[i]].kind == model::SegmentKind::mlp && recomputed_[chunk[i]])
          layered_[chunk[i - 1]] = layered_[chunk[i]] = true;
  weights_.assign(model.groups.size(), none);
  grads_ = bucket_of_ = weights_;
  touched_.resize(model.groups.size() * static_cast<std::size_t>(plan.schedule.micro_batches));
  for (Id b = 0; b < buckets_.size(); ++b)
    for (Id g : buckets_[b].groups) bucket_of_[g] = b;
  for (Bucket& b : buckets_) sync_.declare(*this, b);
}

void Stage::views_of_groups(const Bucket& b, Id of, const char* prefix, std::vector<Id>& views) {
  const Id storage = role_.role().views[of].storage;
  for (std::size_t i = 0; i < b.groups.size(); ++i)
    views[b.groups[i]] = role_.view({.name = prefix + model_.groups[b.groups[i]].name,
                                     .storage = storage,
                                     .begin = b.begin[i],
                                     .end = i + 1 < b.groups.size() ? b.begin[i + 1] : b.elements});
}
void Stage::declare_weights_of_groups(const Bucket& b) {
  views_of_groups(b, b.views.weight, "W.", weights_);
}
void Stage::declare_grads_of_groups(const Bucket& b) {
  views_of_groups(b, b.views.grad, "G.", grads_);
}

Id Stage::own_part(Id whole, const Bucket& bucket) {
  const program::View& view = role_.role().views[whole];
  return role_.view({.name = view.name + ".own",
                     .storage = view.storage,
                     .end = bucket.elements,
                     .slice = shards_});
}

program::Layout Stage::gradient_layout(Id group) const {
  return partial((model_.groups[group].split ? program::Axes{0} : tp_) |
                 (bucket_of(group).tied ? tied_axis(program_) : program::Axes{0}));
}

Id Stage::axis_channel(program::Axes axes) {
  for (const auto& [known, id] : axis_channels_)
    if (known == axes) return id;
  std::string name;
  for (std::size_t a = 0; a < program_.mesh.size(); ++a)
    if (axes >> a & 1) name += (name.empty() ? "" : "-") + program_.mesh[a].name;
  return axis_channels_.emplace_back(axes, channel(program_, name, {.axes = axes})).second;
}

program::Collective Stage::collective(Id channel, program::Move move) const {
  return {.channel = channel,
          .move = move,
          .algorithm = collectives::algorithm_for(move, plan_.exchange.collective)};
}

program::Compute Stage::compute(Id segment, program::Pass pass, const Action& action) const {
  return {
      .segment = segment, .pass = pass, .samples = who_.samples, .microbatch = action.microbatch};
}

void Stage::computed(Id op) {
  computes_.back() = op;
  history_.push_back(op);
}

void Stage::backward_computed(Id op) {
  computed(op);
  for (const std::vector<Id>* ends : {&reduced_, &offloaded_})
    if (const Id end = back(*ends, plan_.exchange.sharding.pending_buckets); end != none)
      role_.throttle(op, end);
}

void Stage::to_host(const Bucket& bucket, program::Layout shard, int shift) {
  const Id op = optimizer_.to_host(
      bucket, ref(bucket.views.sum, program::Slot::source, program::Mode::read, 0, 0, shard),
      shift);
  if (op != none && !plan_.keeps_gradients()) offloaded_.push_back(op);
}

int Stage::readers(Id segment) const {
  if (model_.software.gathers == software::Gathers::shared) return 1;
  switch (model_.segments[segment].kind) {
    case model::SegmentKind::attention:
      return model_.software.qkv_forward;
    case model::SegmentKind::mlp:
      return model_.family == model::Family::llama ? 2 : 1;  // gate and up
    default:
      return 1;
  }
}

void Stage::on_tensor_ranks(program::Move move, const program::Ref& from, program::Ref to,
                            const Action& action, int times) {
  for (int i = 0; i < times; ++i) {
    role_.op("tp", program::Collective{.channel = axis_channel(tp_), .move = move}, {from, to},
             action.shift);
    to.mode = program::Mode::add;  // the others join the first: nothing else reads it in between
  }
}

Id Stage::readable_input(Id segment, const Action& action, bool for_backward) {
  if (!(plan_.mesh.sequence_parallel && tp_))
    return activations_.boundary(Boundary::input, segment, false);
  const Id copy = activations_.boundary(Boundary::gathered_input, segment, false, true);
  const int index = action.microbatch + (for_backward ? plan_.schedule.micro_batches : 0);
  on_tensor_ranks(program::Move::all_gather,
                  ref(activations_.boundary(Boundary::input, segment, true), program::Slot::source,
                      program::Mode::read, action.microbatch, 0, {.shard = tp_}),
                  ref(copy, program::Slot::target, program::Mode::write, index), action,
                  readers(segment));
  return copy;
}

std::vector<program::Ref> Stage::params(Id segment, const Action& action) {
  const auto& groups = model_.segments[segment].groups;
  std::vector<program::Ref> refs;
  refs.reserve(2 * groups.size() + 5);  // backward adds gradients, activations, loss scale
  for (Id g : groups) refs.push_back(sync_.param(*this, g, action.pass, action.microbatch));
  return refs;
}

void Stage::transfer(bool sending, Id segment, Boundary what, int from, int to,
                     const Action& action) {
  const bool shard = plan_.mesh.sequence_parallel && tp_, forward = what == Boundary::input;
  const Id view = activations_.boundary(what, segment, shard);
  const Id link = channel(program_, forward ? "activations" : "gradients");
  const program::Layout layout{.shard = shard ? tp_ : program::Axes{0}};
  const char* lane =
      forward ? (sending ? "act.send" : "act.recv") : (sending ? "grad.send" : "grad.recv");
  const Id peer = static_cast<Id>((sending ? to : from) % plan_.mesh.pp * who_.kinds + who_.kind);
  if (sending) {
    role_.op(lane, program::Send{.channel = link, .peer = peer},
             {ref(view, program::Slot::source, program::Mode::read, action.microbatch, 0, layout)},
             action.shift);
  } else {
    const Id op = role_.op(
        lane, program::Recv{.channel = link, .peer = peer},
        {ref(view, program::Slot::target, program::Mode::write, action.microbatch, 0, layout)},
        action.shift);
    // A receive runs at most one action ahead of compute. Otherwise early stages would fill the
    // memory of late ones.
    if (computes_.size() >= 3) role_.throttle(op, computes_[computes_.size() - 3]);
  }
}

void Stage::run_segment_forward(Id s, const Action& action) {
  const model::Segment& segment = model_.segments[s];
  const int mb = action.microbatch;
  const bool head = segment.kind == model::SegmentKind::head,
             embedding = segment.kind == model::SegmentKind::embedding;
  for (Id g : segment.groups)
    sync_.before_use(*this, bucket_of(g), program::Pass::forward, mb, action.shift);
  const bool sharded_sequence = plan_.mesh.sequence_parallel && tp_;

  std::vector<program::Ref> refs = params(s, action);
  program::Compute work = compute(s, program::Pass::forward, action);
  if (!embedding) {
    const program::Ref input =
        ref(readable_input(s, action, false), program::Slot::input, program::Mode::read, mb);
    if (divided(s)) {
      attend(s, program::Pass::forward, input, action);
      work = part(s, program::Pass::forward, program::Part::output, action);
    }
    refs.push_back(input);
  }
  Id out = none;
  if (head) {
    out = activations_.stats();
    refs.push_back(ref(out, program::Slot::stats, program::Mode::write, mb, 0, {.shard = tp_}));
  } else {
    out = activations_.boundary(sharded_sequence ? Boundary::partial_output : Boundary::input,
                                s + 1, false);
    refs.push_back(ref(out, program::Slot::output, program::Mode::write, mb, 0, {.partial = tp_}));
  }
  if (divided(s))
    std::ranges::copy(attended(s, program::Pass::forward, action), std::back_inserter(refs));
  else if (!recomputed_[s])
    refs.push_back(ref(activations_.saved(s), program::Slot::saved, program::Mode::write, mb));
  computed(role_.op("compute", work, std::move(refs), action.shift));
  if (!tp_) return;
  const program::Ref sum =
      ref(out, program::Slot::source, program::Mode::read, mb, 0, {.partial = tp_});
  if (head)
    on_tensor_ranks(program::Move::all_gather,
                    ref(out, program::Slot::source, program::Mode::read, mb, 0, {.shard = tp_}),
                    ref(activations_.all_stats(), program::Slot::target, program::Mode::write, mb),
                    action);
  else if (sharded_sequence)
    on_tensor_ranks(program::Move::reduce_scatter, sum,
                    ref(activations_.boundary(Boundary::input, s + 1, true), program::Slot::target,
                        program::Mode::write, mb, 0, {.shard = tp_}),
                    action);
  else
    on_tensor_ranks(program::Move::all_reduce, sum,
                    ref(out, program::Slot::target, program::Mode::write, mb), action);
}

void Stage::recompute_segment(Id s, Id input, int input_index, Id output, const Action& action) {
  if (divided(s))
    return attend(s, program::Pass::recompute,
                  ref(input, program::Slot::input, program::Mode::read, input_index), action);
  std::vector<program::Ref> refs = params(s, action);
  if (input != none)
    refs.push_back(ref(input, program::Slot::input, program::Mode::read, input_index));
  if (output != none)
    refs.push_back(ref(output, program::Slot::output, program::Mode::write, action.microbatch, 0,
                       {.partial = tp_}));
  refs.push_back(
      ref(activations_.saved(s), program::Slot::saved, program::Mode::write, action.microbatch));
  role_.op("compute", compute(s, program::Pass::recompute, action), std::move(refs), action.shift);
}

void Stage::sum_again(Id s, const Action& action) {
  if (!tp_) return;
  const int mb = action.microbatch;
  const bool sharded_sequence = plan_.mesh.sequence_parallel;
  const Id from =
      activations_.boundary(sharded_sequence ? Boundary::partial_again : Boundary::again, s, false);
  const Id to = activations_.boundary(Boundary::again, s, sharded_sequence);
  on_tensor_ranks(sharded_sequence ? program::Move::reduce_scatter : program::Move::all_reduce,
                  ref(from, program::Slot::source, program::Mode::read, mb, 0, {.partial = tp_}),
                  ref(to, program::Slot::target, program::Mode::write, mb, 0,
                      {.shard = sharded_sequence ? tp_ : program::Axes{0}}),
                  action);
}

Id Stage::recompute_layer(Id mlp, const Action& action) {
  const int mb = action.microbatch;
  const bool sharded_sequence = plan_.mesh.sequence_parallel && tp_;
  const Boundary summed = sharded_sequence ? Boundary::partial_again : Boundary::again;
  for (Id g : model_.segments[mlp - 1].groups)
    sync_.before_use(*this, bucket_of(g), program::Pass::backward, mb, action.shift);
  recompute_segment(mlp - 1, readable_input(mlp - 1, action, true),
                    sharded_sequence ? mb + plan_.schedule.micro_batches : mb,
                    activations_.boundary(summed, mlp, false), action);
  sum_again(mlp, action);
  Id input = activations_.boundary(Boundary::again, mlp, sharded_sequence);
  if (sharded_sequence) {
    const Id whole = activations_.boundary(Boundary::gathered_again, mlp, false);
    on_tensor_ranks(program::Move::all_gather,
                    ref(input, program::Slot::source, program::Mode::read, mb, 0, {.shard = tp_}),
                    ref(whole, program::Slot::target, program::Mode::write, mb), action,
                    readers(mlp));
    input = whole;
  }
  recompute_segment(mlp, input, mb, none, action);
  return input;
}

void Stage::append_gradients(std::vector<program::Ref>& refs, Id segment, program::Pass pass,
                             const Action& action) {
  const int mb = action.microbatch;
  for (Id g : gradients_of(model_, segment, pass)) {
    const int index = sync_.grad_index(mb);
    // The first backward into an instance of the gradient writes, later ones add. Two segments may
    // use the same (tied) group in one micro-batch.
    const std::size_t touch =
        g * static_cast<std::size_t>(plan_.schedule.micro_batches) + static_cast<std::size_t>(mb);
    const bool first = !touched_[touch] && mb == index;
    touched_[touch] = true;
    refs.push_back(ref(grad(g), program::Slot::grad,
                       first ? program::Mode::write : program::Mode::add, index, 0,
                       gradient_layout(g)));
  }
}

void Stage::run_segment_weights(Id s, const Action& action) {
  const bool sharded_sequence = plan_.mesh.sequence_parallel && tp_;
  std::vector<program::Ref> refs = params(s, action);
  refs.push_back(
      ref(activations_.saved(s), program::Slot::saved, program::Mode::read, action.microbatch));
  if (model_.segments[s].kind != model::SegmentKind::head)
    refs.push_back(
        ref(activations_.boundary(sharded_sequence ? Boundary::gathered_grad : Boundary::grad,
                                  s + 1, false),
            program::Slot::grad_output, program::Mode::read, action.microbatch));
  append_gradients(refs, s, program::Pass::backward_weight, action);
  backward_computed(role_.op("compute", compute(s, program::Pass::backward_weight, action),
                             std::move(refs), action.shift));
}

void Stage::run_segment_backward(Id s, program::Pass pass, const Action& action) {
  const model::Segment& segment = model_.segments[s];
  const int mb = action.microbatch;
  const bool head = segment.kind == model::SegmentKind::head,
             embedding = segment.kind == model::SegmentKind::embedding;
  const bool sharded_sequence = plan_.mesh.sequence_parallel && tp_;
  for (Id g : segment.groups)
    sync_.before_use(*this, bucket_of(g), program::Pass::backward, mb, action.shift);

  const bool mlp = segment.kind == model::SegmentKind::mlp;
  const int gathered =
      sharded_sequence && !(layered(s) && mlp) ? mb + plan_.schedule.micro_batches : mb;
  Id input = none;
  if (layered(s) && mlp)
    input = recompute_layer(s, action);
  else if (layered(s) && sharded_sequence)  // recompute_layer has gathered it
    input = activations_.boundary(Boundary::gathered_input, s, false, true);
  else if (!embedding)
    input = readable_input(s, action, true);
  if (recomputed_[s] && !layered(s)) recompute_segment(s, input, gathered, none, action);
  std::vector<program::Ref> refs = params(s, action);
  program::Compute work = compute(s, pass, action);
  if (!embedding) refs.push_back(ref(input, program::Slot::input, program::Mode::read, gathered));
  // The first half leaves there what the second half reads.
  refs.push_back(kept_ref(
      s, pass, pass == program::Pass::backward ? program::Mode::read : program::Mode::add, action));
  if (head) {
    refs.push_back(ref(tp_ ? activations_.all_stats() : activations_.stats(), program::Slot::stats,
                       program::Mode::read, mb));
  } else {
    Id grad = activations_.boundary(Boundary::grad, s + 1, sharded_sequence);
    if (sharded_sequence) {
      const Id copy = activations_.boundary(Boundary::gathered_grad, s + 1, false);
      on_tensor_ranks(program::Move::all_gather,
                      ref(grad, program::Slot::source, program::Mode::read, mb, 0, {.shard = tp_}),
                      ref(copy, program::Slot::target, program::Mode::write, mb), action);
      grad = copy;
    }
    refs.push_back(ref(grad, program::Slot::grad_output, program::Mode::read, mb));
    if (divided(s)) {
      attend_backward(s, refs, action);
      work = part(s, pass, program::Part::project, action);
    }
  }
  const Id grad_input =
      embedding ? none
                : activations_.boundary(sharded_sequence ? Boundary::partial_grad : Boundary::grad,
                                        s, false);
  if (!embedding)
    refs.push_back(
        ref(grad_input, program::Slot::grad_input, program::Mode::write, mb, 0, {.partial = tp_}));
  if (head && plan_.precision == program::DType::f16) refs.push_back(optimizer_.scale());
  append_gradients(refs, s, pass, action);
  backward_computed(role_.op("compute", work, std::move(refs), action.shift));
  if (!embedding && tp_) {
    const program::Ref sum =
        ref(grad_input, program::Slot::source, program::Mode::read, mb, 0, {.partial = tp_});
    if (sharded_sequence)
      on_tensor_ranks(program::Move::reduce_scatter, sum,
                      ref(activations_.boundary(Boundary::grad, s, true), program::Slot::target,
                          program::Mode::write, mb, 0, {.shard = tp_}),
                      action, readers(s));
    else
      on_tensor_ranks(program::Move::all_reduce, sum,
                      ref(grad_input, program::Slot::target, program::Mode::write, mb), action);
  }
}

void Stage::forward(const Action& action) {
  const int chunk = action.chunk * plan_.mesh.pp + who_.stage;
  const auto& segments = plan_.placement.stages[static_cast<std::size_t>(chunk)];
  const int chunks = static_cast<int>(plan_.placement.stages.size());
  if (chunk > 0) transfer(false, segments.front(), Boundary::input, chunk - 1, chunk, action);
  for (Id s : segments) run_segment_forward(s, action);
  if (chunk + 1 < chunks)
    transfer(true, segments.back() + 1, Boundary::input, chunk, chunk + 1, action);
}

void Stage::backward(const Action& action) {
  const int chunk = action.chunk * plan_.mesh.pp + who_.stage;
  const auto& segments = plan_.placement.stages[static_cast<std::size_t>(chunk)];
  const int chunks = static_cast<int>(plan_.placement.stages.size());
  const bool inputs = action.pass != program::Pass::backward_weight,
             weights = action.pass != program::Pass::backward_input;
  if (inputs && chunk + 1 < chunks)
    transfer(false, segments.back() + 1, Boundary::grad, chunk + 1, chunk, action);
  const bool last = action.microbatch == plan_.schedule.micro_batches - 1;
  for (auto s = segments.rbegin(); s != segments.rend(); ++s) {
    // The embedding has no gradient of an input: all of its backward is work for weights.
    if (model_.segments[*s].kind == model::SegmentKind::embedding) {
      if (weights) run_segment_backward(*s, program::Pass::backward, action);
    } else if (inputs) {
      run_segment_backward(*s, action.pass, action);
    } else {
      run_segment_weights(*s, action);
    }
    if (inputs && s + 1 == segments.rend() && chunk > 0)
      transfer(true, *s, Boundary::grad, chunk, chunk - 1, action);
    if (!weights) continue;
    for (Bucket& b : buckets_)
      if (b.completes_at == *s) sync_.reduce(*this, b, action.microbatch, last, action.shift);
  }
}

void Stage::lower(const std::vector<Action>& actions) {
  if (std::ranges::any_of(actions,
                          [](const Action& a) { return a.pass == program::Pass::backward_weight; }))
    activations_.expect_halves();
  const bool placed = std::any_of(actions.begin(), actions.end(),
                                  [](const Action& a) { return a.update.has_value(); });
  std::size_t segments = 0;
  for (const auto& chunk : plan_.placement.stages) segments = std::max(segments, chunk.size());
  role_.expect(actions.size() * (segments * (tp_ ? 2 : 1) + 2));
  computes_.reserve(actions.size());
  history_.reserve(actions.size() * segments);
  for (const Action& action : actions) {
    computes_.push_back(computes_.empty() ? none : computes_.back());
    if (action.pass == program::Pass::forward)
      forward(action);
    else
      backward(action);
    const bool last = is_backward(action.pass) && action.pass != program::Pass::backward_input &&
                      action.chunk == 0 && action.microbatch == plan_.schedule.micro_batches - 1;
    if (action.update)
      sync_.finish(*this, *action.update);
    else if (last && !placed)
      sync_.finish(*this, action.shift);
  }
}

LoweredProgram lower(const plan::Plan& plan, const model::ModelSpec& model, const PassOrder& order,
                     const GradientSync& sync) {
  program::Program program = make_mesh(plan);
  const std::vector<StageRole> roles = stage_roles(program, plan, sync);
  for (auto who = roles.begin(); who != roles.end();) {
    Stage stage(program, plan, model, *who, sync);
    stage.lower(order.actions(plan, who->stage));
    // Other kinds of the stage differ only in their samples, unless there are leaders.
    std::vector<program::Role> others;
    for (++who; who != roles.end() && who->stage == stage.index() && who->leaders == 0 &&
                who->context == stage.who().context;
         ++who)
      others.push_back(stage.as(*who));
    program.roles.push_back(stage.role().take());
    std::ranges::move(others, std::back_inserter(program.roles));
  }
  return {std::move(program)};
}

const PassOrder one_by_one{
    .actions =
        [](const plan::Plan& plan, int) {
          std::vector<Action> actions;
          for (int mb = 0; mb < plan.schedule.micro_batches; ++mb) {
            actions.push_back({.pass = program::Pass::forward, .microbatch = mb});
            actions.push_back({.pass = program::Pass::backward, .microbatch = mb});
          }
          return actions;
        },
    .in_flight = [](const plan::Plan&, int) { return 1; },
};

}  // namespace rehearse::methods
