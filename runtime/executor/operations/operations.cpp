#include "runtime/executor/operations/operations.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "engine/base/errors.h"
#include "engine/model/tensor_split.h"
#include "runtime/executor/host_copies.h"
#include "runtime/executor/operations/prepared.h"
#include "runtime/kernels/cast.h"
#include "runtime/kernels/optimizer.h"

namespace rehearse::runtime {

void Operations::host(Id id, std::int64_t step) {
  const program::Op& op = *ops_[id]->op;
  if (!op.when.due(step)) return;
  if (const auto* pause = std::get_if<program::Pause>(&op.work))
    std::this_thread::sleep_for(std::chrono::duration<double>(pause->seconds));
  else if (std::holds_alternative<program::Save>(op.work) && on_save_)
    on_save_(step + 1, reinterpret_cast<const SkipCount*>(copied_skipped_.get())->skipped);
}

bool Operations::execute(Id id, std::int64_t step) {
  Prepared& p = *ops_[id];
  const bool goes_on = !works(p, step) || work(p, step);
  for (const Operand& dying : p.dies) memory_.release(dying, step);
  return goes_on;
}

bool Operations::works(const Prepared& p, std::int64_t step) {
  if (!p.op->when.due(step)) return false;
  // Ops that do not stop are on other lanes, which are other threads.
  if (role_.round.steps == 0 || !feed_.training || !program::stops(*p.op)) return true;
  if (rounds_.works(role_.round, *p.op, step, [&] { return now(); })) return true;
  const std::lock_guard lock(loss_lock_);
  std::int64_t& missed = loss(step).here->missed_labels;
  if (missed == 0) missed = label_count(step);
  return false;
}

/// By the clock of the host, when the device has done what came before.
double Operations::now() {
  if (accelerator_ != nullptr) accelerator_->finish();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool Operations::work(Prepared& p, std::int64_t step) {
  if (!p.on_host) return run(p, step);
  HostCopies copies(memory_.device());
  const bool goes_on = run(p, step);
  copies.store();
  return goes_on;
}

bool Operations::run(Prepared& p, std::int64_t step) {
  bool goes_on = true;
  std::visit(
      program::overloaded{
          [&](const program::Compute& work) { compute(p, work, step); },
          [&](const program::Kernel& work) { kernel(p, work, step); },
          [&](const program::Update& work) { update(p, work, step); },
          [&](const program::Collective&) { collective(p, step); },
          [&](const program::Send&) {
            p.communicator->send(payload(p.need(program::Slot::source), step), p.peer_member);
          },
          [&](const program::Recv&) {
            p.communicator->recv(place(p.need(program::Slot::target), step), p.peer_member);
          },
          [&](const program::Put& put) {
            mailboxes_[p.mailbox]->put(payload(p.need(program::Slot::source), step),
                                       put.reply == none ? p.peer_rank : last_sender_[put.reply],
                                       ends_others_ && put.reply != none && feed_.ends_after(step));
          },
          [&](const program::Take& take) {
            const Delivery got =
                mailboxes_[p.mailbox]->take(place(p.need(program::Slot::target), step));
            if (got.from == none)
              throw BackendError(
                  fmt::format("channel {}: step {} needs a message, but every sender "
                              "has ended",
                              program_.channels[take.channel].name, step + 1));
            last_sender_[take.channel] = got.from;
            goes_on = !got.last;
          },
          [&](const program::Copy&) { copy(p, step); },
          [](const program::Save&) {},
          [&](const program::Pause&) {
            for (const Operand& operand : p.operands)
              if (operand.slot == program::Slot::target) memory_.write(operand, step).zero_();
          },
          [](const program::Issue&) {},
      },
      p.op->work);
  return goes_on;
}

void Operations::copy(Prepared& p, std::int64_t step) {
  const Operand &from = p.need(program::Slot::source), &to = p.need(program::Slot::target);
  if (memory_.is_saved(from)) return memory_.copy_saved(from, to, step);
  // The first snapshot of a step runs after an update of this step and before all of the next one.
  const bool snapshot = role_.storages[from.storage].life == program::Life::state;
  if (snapshot && std::exchange(copied_step_, step) != step) {
    if (accelerator_ != nullptr)
      accelerator_->copy(copied_skipped_.get(), skips_, sizeof *skips_);
    else
      copy_skips(*skips_, *reinterpret_cast<SkipCount*>(copied_skipped_.get()));
  }
  memory_.write(to, step).copy_(memory_.read(from, step), accelerator_ != nullptr);
}

Buffer Operations::payload(const Operand& operand, std::int64_t step) {
  const at::Tensor tensor = memory_.read(operand, step);
  return {.data = tensor.data_ptr(), .elements = tensor.numel(), .dtype = operand.dtype};
}

Buffer Operations::place(const Operand& operand, std::int64_t step) {
  const at::Tensor tensor = memory_.write(operand, step);
  return {.data = tensor.data_ptr(), .elements = tensor.numel(), .dtype = operand.dtype};
}

void Operations::collective(Prepared& p, std::int64_t step) {
  const Operand* from = p.at(program::Slot::source);
  const Operand* to = p.at(program::Slot::target);
  at::Tensor source, target;
  if (from != nullptr) source = memory_.read(*from, step);
  if (to != nullptr) target = memory_.write(*to, step);
  // A member without a source contributes zeros; a member without a target receives nothing.
  if (from == nullptr) source = p.reduces ? target.zero_() : target;
  if (to == nullptr) target = source;
  if (to != nullptr && to->mode == program::Mode::add) {
    const at::Tensor result = at::empty_like(target);
    p.communicator->run(p.handle, source.data_ptr(), result.data_ptr());
    target.add_(result);
    return;
  }
  if (p.packets != nullptr)
    p.packets->run(static_cast<std::byte*>(source.data_ptr()),
                   static_cast<std::byte*>(target.data_ptr()));
  else
    p.communicator->run(p.handle, source.data_ptr(), target.data_ptr());
}

void Operations::compute(Prepared& p, const program::Compute& work, std::int64_t step) {
  // In evaluation a head's backward only reads the loss. Its weights may not have been gathered.
  if (feed_.training || !is_backward(work.pass))
    for (std::size_t i = 0; i < p.params.size(); ++i)
      p.param_tensors[i] = memory_.read(*p.params[i], step);
  const bool part = work.part != program::Part::whole;
  if (is_backward(work.pass))
    part ? part_backward(p, work, step) : backward(p, work, step);
  else
    part ? part_forward(p, work, step) : forward(p, work, step);
  // Drop these handles, so that a gathered weight is freed after its last use.
  std::fill(p.param_tensors.begin(), p.param_tensors.end(), at::Tensor());
  std::fill(p.grad_tensors.begin(), p.grad_tensors.end(), at::Tensor());
}

namespace {

/// The loss's numbers of each token. Where other software would send its logits too, there are
/// zeros behind them.
at::Tensor with_room(const at::Tensor& numbers, std::int64_t elements) {
  if (numbers.numel() == elements) return numbers;
  at::Tensor out = at::zeros({elements}, numbers.options());
  out.narrow(0, 0, numbers.numel()).copy_(numbers.view(-1));
  return out;
}

}  // namespace

void Operations::forward(Prepared& p, const program::Compute& work, std::int64_t step) {
  models::Batch room;
  const models::Batch& batch = this->batch(work, step, room);
  at::Tensor input;  // (B, T, H): samples, sequence length, hidden
  if (const Operand* operand = p.at(program::Slot::input))
    input = memory_.read(*operand, step).view({work.samples, -1, model_.hidden});
  const Operand* keeps = p.at(program::Slot::saved);
  models::Saved saved;
  const at::Tensor output = p.block->forward(p.param_tensors, input, batch,
                                             keeps != nullptr && feed_.training ? &saved : nullptr);
  if (keeps != nullptr) memory_.saved(*keeps, step + keeps->age) = std::move(saved);
  if (const Operand* target = p.at(program::Slot::output))
    memory_.set(*target, step, output);
  else if (const Operand* stats = p.at(program::Slot::stats))
    memory_.set(*stats, step, with_room(output, stats->elements));
}

void Operations::backward(Prepared& p, const program::Compute& work, std::int64_t step) {
  models::Batch room;
  const models::Batch* batch = &this->batch(work, step, room);
  at::Tensor grad_output;  // (B, T, H); of the head (tp, B, T, 3), see models::Block::backward
  if (p.at(program::Slot::stats) != nullptr) {
    grad_output = memory_.read(p.need(program::Slot::stats), step)
                      .view({model::tensor_split(program_).ranks, -1})
                      .narrow(1, 0, 3 * batch->tokens.numel())
                      .reshape({-1, work.samples, batch->tokens.size(1), 3});
    add_loss(step, loss_sum(grad_output, *batch));
  } else if (const Operand* operand = p.at(program::Slot::grad_output)) {
    grad_output = memory_.read(*operand, step).view({work.samples, -1, model_.hidden});
  }
  if (!feed_.training) return;
  at::Tensor input;
  if (const Operand* operand = p.at(program::Slot::input))
    input = memory_.read(*operand, step).view({work.samples, -1, model_.hidden});
  models::Batch scaled;
  if (const Operand* scale = p.at(program::Slot::scale)) {
    scaled = *batch;
    scaled.loss_scale = memory_.read(*scale, step).narrow(0, 0, 1);
    batch = &scaled;
  }
  for (std::size_t i = 0; i < p.grads.size(); ++i)
    if (p.grads[i] != nullptr) p.grad_tensors[i] = memory_.write(*p.grads[i], step);
  for (const Operand& padding : p.padding) memory_.write(padding, step).zero_();
  const at::Tensor grad_input =
      p.block->backward(work.pass, p.param_tensors, input,
                        memory_.saved(p.need(program::Slot::saved), step), grad_output, *batch,
                        p.grad_tensors, std::span<const bool>(p.accumulate.get(), p.grads.size()));
  if (const Operand* target = p.at(program::Slot::grad_input))
    memory_.set(*target, step, grad_input);
}

NormAndScale Operations::norm_and_scale(const Prepared& p, std::int64_t step) {
  const auto number = [&](program::Slot slot) -> const float* {
    const Operand* operand = p.at(slot);
    return operand == nullptr ? nullptr : memory_.read(*operand, step).data_ptr<float>();
  };
  return {.squares = number(program::Slot::norm), .loss_scale = number(program::Slot::scale)};
}

void Operations::kernel(Prepared& p, const program::Kernel& work, std::int64_t step) {
  switch (work.kind) {
    case program::KernelKind::measure: {
      c10::SmallVector<Values, 4> sources;
      for (const Operand& operand : p.operands)
        if (operand.slot == program::Slot::source || operand.slot == program::Slot::grad) {
          const at::Tensor source = memory_.read(operand, step);
          sources.push_back({source.data_ptr(), operand.dtype, source.numel()});
        }
      const Operand* target = p.at(program::Slot::norm);
      if (target == nullptr) target = &p.need(program::Slot::target);
      const bool add = target->mode == program::Mode::add;
      auto* const norm = memory_.write(*target, step).data_ptr<float>();
      kernels(p).measure(sources, work.scale, add, norm);
      return;
    }
    case program::KernelKind::rescale: {
      const Operand* norm = p.at(program::Slot::norm);
      if (norm == nullptr) norm = &p.need(program::Slot::source);
      const Operand* scale = p.at(program::Slot::scale);
      if (scale == nullptr) scale = &p.need(program::Slot::target);
      const at::Tensor old_scale = memory_.read(*scale, step);
      const at::Tensor new_scale = memory_.write(*scale, step);
      // With several versions, the new version starts as a copy of the last one.
      if (old_scale.data_ptr() != new_scale.data_ptr()) new_scale.copy_(old_scale);
      const auto* const squares = memory_.read(*norm, step).data_ptr<float>();
      kernels(p).rescale(squares, new_scale.data_ptr<float>());
      return;
    }
    case program::KernelKind::select:
      select(p, work, step);
      return;
    case program::KernelKind::scatter_add:
      scatter_add(p, work, step);
      return;
    case program::KernelKind::quantise:
      quantise(p, work, step);
      return;
    case program::KernelKind::dequantise:
      dequantise(p, work, step);
      return;
    case program::KernelKind::project:
    case program::KernelKind::orthonormalise:
    case program::KernelKind::project_back:
    case program::KernelKind::expand:
      low_rank(p, work, step);
      return;
    case program::KernelKind::draw:
      draw(p, work, step);
      return;
    case program::KernelKind::momentum:
      momentum(p, work, step);
      return;
    case program::KernelKind::in_time: {
      const bool late = rounds_.late(role_.round, now());
      memory_.write(p.need(program::Slot::target), step)
          .fill_(late ? 0 : static_cast<float>(work.scale));
      const std::lock_guard lock(loss_lock_);
      loss(step).here->late = late;
      return;
    }
    case program::KernelKind::weigh:
    case program::KernelKind::drift:
    case program::KernelKind::outer_step:
    case program::KernelKind::mix:
      average(p, work, step);
      return;
    case program::KernelKind::advertise:
    case program::KernelKind::relay_keys:
    case program::KernelKind::share_secrets:
    case program::KernelKind::relay_shares:
    case program::KernelKind::mask:
    case program::KernelKind::tell_stayed:
    case program::KernelKind::open_shares:
    case program::KernelKind::unmask:
      secure_sum(p, work, step);
      return;
    case program::KernelKind::cast: {
      c10::SmallVector<at::Tensor, 4> sources;
      for (const Operand& operand : p.operands)
        if (operand.slot == program::Slot::source) sources.push_back(memory_.read(operand, step));
      const Operand& target = p.need(program::Slot::target);
      cast(sources, memory_.write(target, step), target.mode == program::Mode::add, work.keep,
           work.stride);
      return;
    }
    case program::KernelKind::observe: {
      const Operand& source = p.need(program::Slot::source);
      const at::Tensor values = memory_.read(source, step);
      const NormAndScale gradients = norm_and_scale(p, step);
      auto* const state = memory_.write(p.need(program::Slot::target), step).data_ptr<float>();
      kernels(p).observe({values.data_ptr(), source.dtype, values.numel()}, work.stride, gradients,
                         state);
      return;
    }
  }
}

void Operations::average(Prepared& p, const program::Kernel& work, std::int64_t step) {
  const auto read = [&](const Operand& operand) {
    return memory_.read(operand, step).data_ptr<float>();
  };
  const auto write = [&](program::Slot slot) {
    const Operand* const operand = p.at(slot);
    return operand == nullptr ? nullptr : memory_.write(*operand, step).data_ptr<float>();
  };
  c10::SmallVector<const float*, 4> sources;
  for (const Operand& operand : p.operands)
    if (operand.slot == program::Slot::source) sources.push_back(read(operand));
  const Operand* const share = p.at(program::Slot::share);
  kernels(p).average({.kind = work.kind,
                      .scale = static_cast<float>(work.scale),
                      .momentum = static_cast<float>(work.momentum),
                      .share = share == nullptr ? nullptr : read(*share),
                      .sources = sources,
                      .anchor = work.kind == program::KernelKind::drift
                                    ? read(p.need(program::Slot::anchor))
                                    : write(program::Slot::anchor),
                      .moment = write(program::Slot::outer_moment),
                      .target = write(program::Slot::target),
                      .elements = p.need(program::Slot::target).elements});
}

template <class F>
void Operations::each_communicator(const F& f) const {
  for (const auto& lane : communicators_)
    for (const auto& c : lane)
      if (c != nullptr) f(*c);
  for (const auto& [name, wire] : wires_) f(*wire);
}

std::int64_t Operations::bytes_sent() const {
  std::int64_t sum = bytes_put_;
  each_communicator([&](const Communicator& c) { sum += c.traffic().sent; });
  for (const auto& m : mailboxes_)
    if (m != nullptr) sum += m->traffic().sent;
  return sum;
}

std::int64_t Operations::scratch_bytes() const {
  std::int64_t sum = 0;
  each_communicator([&](const Communicator& c) { sum += c.scratch_bytes(); });
  return sum;
}

}  // namespace rehearse::runtime
