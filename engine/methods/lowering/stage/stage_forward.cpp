// Forward of a segment, and the same once more where backward recomputes it.
#include <algorithm>
#include <iterator>

#include "engine/methods/lowering/stage/stage.h"

namespace rehearse::methods {

void Stage::run_segment_forward(Id s, const Action& action) {
  const model::Segment& segment = model_.segments[s];
  const int mb = action.microbatch;
  const bool head = segment.kind == model::SegmentKind::head,
             embedding = segment.kind == model::SegmentKind::embedding;
  for (Id g : segment.groups)
    sync_.before_use(*this, bucket_of(g), program::Pass::forward, mb, action.shift);
  const bool sharded_sequence = plan_.mesh.sequence_parallel && tp_;
  const Id first = static_cast<Id>(role_.role().ops.size());

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
    std::ranges::copy(attention_output(s, program::Pass::forward, action),
                      std::back_inserter(refs));
  else if (!recomputed_[s])
    refs.push_back(ref(activations_.saved(s), program::Slot::saved, program::Mode::write, mb));
  computed(role_.op("compute", work, std::move(refs), action.shift));
  if (hosted_.moves(s, action)) move_to_host(s, first, action);
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

}  // namespace rehearse::methods
