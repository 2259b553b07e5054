// The parts of attention over sequences that ranks divide (models::PartedAttention).
#include "engine/model/context.h"
#include "runtime/executor/operations/prepared.h"

namespace rehearse::runtime {

using program::Part;
using program::Slot;

void Operations::prepare_part(Prepared& p, const program::Compute& compute) {
  std::unique_ptr<models::PartedAttention>& parted = parted_[compute.segment];
  const bool rings = compute.block != none;
  if (parted == nullptr)
    parted = models::make_parted_attention(model_, compute.segment, map_.tp_size, map_.tp_rank,
                                           dtype_of(role_, *p.op), rings ? 0 : context_.count);
  p.parted = parted.get();
  if (rings)
    p.kv_block = model::attended_block(model_.seq_len / context_.count, context_.index,
                                       static_cast<int>(compute.block), cut_of(program_),
                                       model_.family != model::Family::bert);
}

void Operations::part_forward(Prepared& p, const program::Compute& work, std::int64_t step) {
  models::Batch room;
  const models::Batch& batch = this->batch(work, step, room);
  const Operand* keeps = p.at(Slot::saved);
  if (keeps == nullptr) return;  // a block that this rank does not attend to
  models::Saved& saved = memory_.saved(*keeps, step + keeps->age);
  at::Tensor input, source;
  if (const Operand* operand = p.at(Slot::input))
    input = memory_.read(*operand, step).view({work.samples, -1, model_.hidden});
  if (const Operand* operand = p.at(Slot::source)) source = memory_.read(*operand, step);
  at::Tensor result;
  if (work.part == Part::project)
    result = p.parted->project(p.param_tensors, input, batch, saved);
  else if (work.part == Part::attend)
    result = p.parted->attend(source, p.kv_block, batch, saved);
  else
    result = p.parted->output(p.param_tensors, input, source, batch, saved);
  const Operand* target = p.at(work.part == Part::output ? Slot::output : Slot::target);
  if (target != nullptr) memory_.set(*target, step, result);
}

void Operations::part_backward(Prepared& p, const program::Compute& work, std::int64_t step) {
  if (!feed_.training) return;
  models::Batch room;
  const models::Batch& batch = this->batch(work, step, room);
  const auto read = [&](Slot slot) {
    const Operand* operand = p.at(slot);
    return operand == nullptr ? at::Tensor() : memory_.read(*operand, step);
  };
  const auto activation = [&](Slot slot) {
    return read(slot).view({work.samples, -1, model_.hidden});
  };
  if (work.part == Part::output) {
    memory_.set(p.need(Slot::target), step,
                p.parted->output_backward(p.param_tensors, activation(Slot::grad_output), batch));
    return;
  }
  if (work.part == Part::attend) {
    const Operand* target = p.at(Slot::target);
    if (target == nullptr) return;  // a block that this rank does not attend to
    models::PartedAttention::BlockGradient gradient{.output = read(Slot::output),
                                                    .grad = read(Slot::grad_output),
                                                    .source = memory_.write(*target, step)};
    if (const Operand* query = p.at(Slot::grad_input)) {
      gradient.query = memory_.write(*query, step);
      gradient.add = query->mode == program::Mode::add;
    }
    models::Saved nothing;
    const Operand* keeps = p.at(Slot::saved);
    p.parted->attend_backward(read(Slot::source), p.kv_block, batch,
                              keeps == nullptr ? nothing : memory_.saved(*keeps, step), gradient);
    return;
  }
  for (std::size_t i = 0; i < p.grads.size(); ++i)
    if (p.grads[i] != nullptr) p.grad_tensors[i] = memory_.write(*p.grads[i], step);
  for (const Operand& padding : p.padding) memory_.write(padding, step).zero_();
  memory_.set(
      p.need(Slot::grad_input), step,
      p.parted->project_backward(
          p.param_tensors, activation(Slot::input), memory_.saved(p.need(Slot::saved), step),
          activation(Slot::grad_output), read(Slot::output), read(Slot::source), batch,
          p.grad_tensors, std::span<const bool>(p.accumulate.get(), p.grads.size())));
}

}  // namespace rehearse::runtime
