// Backward of a segment: all of it, or the gradients of inputs first and those of weights later.
#include "engine/methods/lowering/stage/stage.h"

namespace rehearse::methods {

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
  refs.push_back(kept_ref(s, program::Pass::backward_weight, program::Mode::read, action));
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
  if (layered(s) && mlp)  // recompute_layer begins with the attention before it
    fetch(s - 1, action);
  else if (!layered(s))
    fetch(s, action);
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

}  // namespace rehearse::methods
