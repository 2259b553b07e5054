#include "engine/methods/lowering/stage/stage.h"

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
      hosted_(role_, plan, model, activations_),
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
  // A tied gradient waits for the backward of another stage, and all copies after it wait for it:
  // backward waits for none of them.
  tied_offloaded_ = tied_offloaded_ || bucket.tied;
  if (op != none && !plan_.keeps_gradients() && !tied_offloaded_) offloaded_.push_back(op);
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
    role_.op("tp", collective(axis_channel(tp_), move), {from, to}, action.shift);
    to.mode = program::Mode::add;  // the others join the first: nothing else reads it in between
  }
}

bool Stage::keeps(Id segment) const {
  switch (model_.segments[segment].kind) {
    case model::SegmentKind::embedding:
      return false;
    case model::SegmentKind::mlp:
      return !layered(segment);
    default:
      return true;
  }
}

std::vector<program::Ref> Stage::kept(Id segment, const Action& action) {
  const bool shard = plan_.mesh.sequence_parallel && tp_;
  std::vector<program::Ref> refs{ref(activations_.boundary(Boundary::input, segment, shard),
                                     program::Slot::source, program::Mode::read, action.microbatch,
                                     0, {.shard = shard ? tp_ : program::Axes{0}})};
  if (recomputed_[segment]) return refs;
  refs.push_back(ref(activations_.saved(segment), program::Slot::source, program::Mode::read,
                     action.microbatch));
  if (!divided(segment)) return refs;
  const auto exchange = [&](Exchanged what) {
    refs.push_back(exchanged(what, segment, program::Pass::forward, program::Slot::source,
                             program::Mode::read, action));
  };
  if (plan_.mesh.rings())
    exchange(Exchanged::kv);
  else
    exchange(Exchanged::heads), exchange(Exchanged::output_heads), exchange(Exchanged::output);
  return refs;
}

void Stage::move_to_host(Id segment, Id first, const Action& action) {
  Id compute = first;
  while (!std::holds_alternative<program::Compute>(role_.role().ops[compute].work)) ++compute;
  if (const Id gate = hosted_.forward_gate(); gate != none) role_.throttle(compute, gate);
  hosted_.to_host(kept(segment, action), action);
}

void Stage::fetch(Id segment, const Action& action) {
  if (hosted_.moves(segment, action))
    hosted_.to_device(kept(segment, action), back(history_, 1 + plan_.schedule.hosted.ahead),
                      action);
}

Id Stage::readable_input(Id segment, const Action& action, bool for_backward) {
  const bool shard = plan_.mesh.sequence_parallel && tp_;
  Id input = activations_.boundary(Boundary::input, segment, shard);
  if (for_backward && hosted_.moves(segment, action)) input = hosted_.back(input);
  if (!shard) return input;
  const Id copy = activations_.boundary(Boundary::gathered_input, segment, false, true);
  const int index = action.microbatch + (for_backward ? plan_.schedule.micro_batches : 0);
  on_tensor_ranks(
      program::Move::all_gather,
      ref(input, program::Slot::source, program::Mode::read, action.microbatch, 0, {.shard = tp_}),
      ref(copy, program::Slot::target, program::Mode::write, index), action, readers(segment));
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
  std::vector<bool> keeping;
  for (Id s = 0; s < model_.segments.size(); ++s) keeping.push_back(keeps(s));
  hosted_.expect(actions, keeping);
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
