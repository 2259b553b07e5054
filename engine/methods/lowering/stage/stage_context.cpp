// Attention over a sequence that cp ranks divide. The parts of its passes are ops of their own
// (program::Part), with transfers between them.
//
// Rings (Liu et al., Ring Attention with Blockwise Transformers, 2023): in step j, a rank attends
// to the block of rank (place - j) mod n, while it sends that block to the next rank and receives
// the next block from the rank before:
//
//   compute   project  attend own  attend 1  attend 2  ...  output
//   cp.send            own ------> 1 ------> 2 ------>
//   cp.recv            1 --------> 2 ------> 3 ------>
//
// All blocks visit all ranks, as in Megatron-LM (cp_comm_type p2p), so a causal model's rank also
// receives blocks that it does not attend to. In backward, blocks go around again, and behind each
// of them the sum of its gradients, which begins at the rank after its owner:
//
//   compute   output  attend own  attend 1  attend 2  add 2  attend 3  add 3  ...  add own  project
//   cp.grad.send                            1 ------>        2 ------>
//   cp.grad.recv                            2 ------>        3 ------>
//
// Ulysses (Jacobs et al. 2023): an all-to-all gives each rank all tokens of its part of the heads;
// another one brings attention's output back to the tokens. Backward has the same two.
#include "engine/methods/lowering/stage/stage.h"
#include "engine/model/context.h"

namespace rehearse::methods {

using program::Mode;
using program::Part;
using program::Pass;
using program::Slot;

program::Compute Stage::part(Id s, Pass pass, Part part, const Action& action) const {
  program::Compute work = compute(s, pass, action);
  work.part = part;
  if (plan_.mesh.rings()) work.block = static_cast<Id>(who_.context);
  return work;
}

program::Ref Stage::as_read(program::Ref kept, Id s, Pass pass, const Action& action) {
  if (is_backward(pass) && !recomputed_[s] && hosted_.moves(s, action))
    kept.view = hosted_.back(kept.view);
  return kept;
}

program::Ref Stage::kept_ref(Id s, Pass pass, Mode mode, const Action& action) {
  // Attention's parts hand on what they keep in forward too. Recomputation has instances of its
  // own.
  const bool twice = divided(s) && recomputed_[s];
  const int index =
      action.microbatch + (twice && pass != Pass::forward ? plan_.schedule.micro_batches : 0);
  return as_read(ref(activations_.saved(s, twice), Slot::saved, mode, index), s, pass, action);
}

program::Ref Stage::exchanged(Exchanged what, Id s, Pass pass, Slot slot, Mode mode,
                              const Action& action) {
  // Of what backward alone uses, there is one instance.
  const bool twice = recomputed_[s] && what < Exchanged::grad;
  const int index =
      action.microbatch + (twice && pass != Pass::forward ? plan_.schedule.micro_batches : 0);
  const program::Ref kept = ref(activations_.exchanged(what, s, twice), slot, mode, index, 0,
                                {.shard = plan_.mesh.rings() ? program::Axes{0} : cp_});
  return what < Exchanged::grad ? as_read(kept, s, pass, action) : kept;
}

Id Stage::owner(int step) const {
  return static_cast<Id>((who_.context + plan_.mesh.cp - step) % plan_.mesh.cp);
}

bool Stage::attends(int step) const {
  return !model::attended_block(model_.seq_len / plan_.mesh.cp, who_.context,
                                static_cast<int>(owner(step)), cut_of(program_),
                                model_.family != model::Family::bert)
              .empty();
}

program::Ref Stage::ring_block(Id s, int step, Pass pass, const Action& action) {
  return step == 0
             ? exchanged(Exchanged::kv, s, pass, Slot::source, Mode::read, action)
             : ref(activations_.buffer(Exchanged::ring_kv, 2), Slot::source, Mode::read, step % 2);
}

void Stage::exchange_heads(Exchanged from, Exchanged to, Id s, Pass pass, const Action& action) {
  role_.op("cp",
           collective(channel(program_, "cp.heads", {.axes = cp_}), program::Move::all_to_all),
           {exchanged(from, s, pass, Slot::source, Mode::read, action),
            exchanged(to, s, pass, Slot::target, Mode::write, action)},
           action.shift);
}

void Stage::send_on(Exchanged what, program::Ref from, const Action& action) {
  const bool grad = what == Exchanged::ring_grad;
  from.slot = Slot::source, from.mode = Mode::read;
  // Kinds are numbered by their place along cp, so the next rank's is the next one.
  const int next_place = (who_.kind + 1) % who_.kinds;
  role_.op(grad ? "cp.grad.send" : "cp.send",
           program::Send{.channel = channel(program_, grad ? "cp.grad" : "cp.kv"),
                         .peer = static_cast<Id>(who_.stage * who_.kinds + next_place)},
           {from}, action.shift);
}

void Stage::receive(Exchanged what, program::Ref to, const Action& action) {
  const bool grad = what == Exchanged::ring_grad;
  to.slot = Slot::target, to.mode = Mode::write;
  const int previous_place = (who_.kind + who_.kinds - 1) % who_.kinds;
  role_.op(grad ? "cp.grad.recv" : "cp.recv",
           program::Recv{.channel = channel(program_, grad ? "cp.grad" : "cp.kv"),
                         .peer = static_cast<Id>(who_.stage * who_.kinds + previous_place)},
           {to}, action.shift);
}

void Stage::attend(Id s, Pass pass, program::Ref input, const Action& action) {
  const bool rings = plan_.mesh.rings();
  std::vector<program::Ref> refs = params(s, action);
  refs.push_back(input);
  refs.push_back(kept_ref(s, pass, Mode::write, action));
  refs.push_back(exchanged(rings ? Exchanged::kv : Exchanged::qkv, s, pass, Slot::target,
                           Mode::write, action));
  role_.op("compute", part(s, pass, Part::project, action), std::move(refs), action.shift);
  if (rings) return attend_around_ring(s, pass, action);
  exchange_heads(Exchanged::qkv, Exchanged::heads, s, pass, action);
  role_.op("compute", part(s, pass, Part::attend, action),
           {exchanged(Exchanged::heads, s, pass, Slot::source, Mode::read, action),
            kept_ref(s, pass, Mode::add, action),
            exchanged(Exchanged::output_heads, s, pass, Slot::target, Mode::write, action)},
           action.shift);
  exchange_heads(Exchanged::output_heads, Exchanged::output, s, pass, action);
}

std::vector<program::Ref> Stage::attention_output(Id s, Pass pass, const Action& action) {
  std::vector<program::Ref> refs{kept_ref(s, pass, Mode::read, action)};
  if (!plan_.mesh.rings())
    refs.push_back(exchanged(Exchanged::output, s, pass, Slot::source, Mode::read, action));
  return refs;
}

void Stage::attend_around_ring(Id s, Pass pass, const Action& action) {
  const int ranks = plan_.mesh.cp;
  const Id buffer = activations_.buffer(Exchanged::ring_kv, 2);
  for (int step = 0; step < ranks; ++step) {
    const program::Ref block = ring_block(s, step, pass, action);
    if (step + 1 < ranks) {
      send_on(Exchanged::ring_kv, block, action);
      receive(Exchanged::ring_kv, ref(buffer, Slot::target, Mode::write, (step + 1) % 2), action);
    }
    program::Compute work = part(s, pass, Part::attend, action);
    work.block = owner(step);
    std::vector<program::Ref> refs{block};
    if (attends(step)) refs.push_back(kept_ref(s, pass, Mode::add, action));
    role_.op("compute", work, std::move(refs), action.shift);
  }
}

void Stage::attend_backward(Id s, std::vector<program::Ref>& refs, const Action& action) {
  constexpr Pass pass = Pass::backward;
  std::vector<program::Ref> output = params(s, action);
  output.push_back(refs.back());  // the gradient of the segment's output
  output.push_back(exchanged(Exchanged::grad, s, pass, Slot::target, Mode::write, action));
  role_.op("compute", part(s, pass, Part::output, action), std::move(output), action.shift);
  if (plan_.mesh.rings()) {
    attend_backward_around_ring(s, action);
  } else {
    exchange_heads(Exchanged::grad, Exchanged::grad_heads, s, pass, action);
    role_.op("compute", part(s, pass, Part::attend, action),
             {exchanged(Exchanged::heads, s, pass, Slot::source, Mode::read, action),
              exchanged(Exchanged::output_heads, s, pass, Slot::output, Mode::read, action),
              exchanged(Exchanged::grad_heads, s, pass, Slot::grad_output, Mode::read, action),
              kept_ref(s, pass, Mode::read, action),
              exchanged(Exchanged::grad_qkvh, s, pass, Slot::target, Mode::write, action)},
             action.shift);
    exchange_heads(Exchanged::grad_qkvh, Exchanged::grad_qkv, s, pass, action);
    refs.push_back(exchanged(Exchanged::output, s, pass, Slot::output, Mode::read, action));
  }
  refs.push_back(exchanged(Exchanged::grad_qkv, s, pass, Slot::source, Mode::read, action));
}

void Stage::attend_backward_around_ring(Id s, const Action& action) {
  constexpr Pass pass = Pass::backward;
  const int ranks = plan_.mesh.cp;
  const Id blocks = activations_.buffer(Exchanged::ring_kv, 2),
           sums = activations_.buffer(Exchanged::ring_grad, 2);
  const auto sum = [&](int step) { return ref(sums, Slot::target, Mode::write, step % 2); };
  const auto part_of_sum = [&] {
    return ref(activations_.buffer(Exchanged::ring_part, 1), Slot::target, Mode::write);
  };
  const auto add = [&](program::Ref from, program::Ref to) {
    from.slot = Slot::source, from.mode = Mode::read;
    to.mode = Mode::add;
    role_.op("compute", program::Kernel{.kind = program::KernelKind::cast}, {from, to},
             action.shift);
  };
  // The gradients of the queries, then those of this rank's keys and values.
  program::Ref query =
      exchanged(Exchanged::grad_qkv, s, pass, Slot::grad_input, Mode::write, action);
  const program::View whole = role_.role().views[query.view];
  const std::int64_t cut = whole.end / (model_.heads + 2 * model_.kv_heads) * model_.heads;
  program::Ref own = query;
  own.slot = Slot::target;
  query.view = role_.view({.name = whole.name + ".q", .storage = whole.storage, .end = cut});
  own.view = role_.view(
      {.name = whole.name + ".kv", .storage = whole.storage, .begin = cut, .end = whole.end});
  for (int step = 0; step < ranks; ++step) {
    const program::Ref block = ring_block(s, step, pass, action);
    if (step + 1 < ranks) {
      send_on(Exchanged::ring_kv, block, action);
      receive(Exchanged::ring_kv, ref(blocks, Slot::target, Mode::write, (step + 1) % 2), action);
    }
    // Behind the block comes the sum of its gradients; the rank after the owner begins it.
    if (step > 1) receive(Exchanged::ring_grad, sum(step), action);
    const bool adds = step > 1 && attends(step);
    program::Compute work = part(s, pass, Part::attend, action);
    work.block = owner(step);
    std::vector<program::Ref> refs{block};
    if (attends(step)) {
      refs.push_back(exchanged(Exchanged::grad, s, pass, Slot::grad_output, Mode::read, action));
      refs.push_back(kept_ref(s, pass, Mode::read, action));
      refs.push_back(query);
      query.mode = Mode::add;
    }
    if (step < 2 || adds) refs.push_back(step == 0 ? own : adds ? part_of_sum() : sum(step));
    role_.op("compute", work, std::move(refs), action.shift);
    if (adds) add(part_of_sum(), sum(step));
    if (step > 0) send_on(Exchanged::ring_grad, sum(step), action);
  }
  receive(Exchanged::ring_grad, sum(ranks), action);
  add(sum(ranks), own);
}

}  // namespace rehearse::methods
