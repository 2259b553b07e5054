// What the host gives to bodies and gets from them: batches, losses and norms; and what it computes
// in place of an accelerator.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/base/names.h"
#include "runtime/executor/host_copies.h"
#include "runtime/executor/operations/prepared.h"

namespace rehearse::runtime {

std::shared_ptr<std::byte> Operations::host_memory(std::size_t bytes) const {
  if (accelerator_ != nullptr) return accelerator_->pinned(static_cast<std::int64_t>(bytes));
  const auto memory = std::make_shared<std::vector<std::max_align_t>>(
      (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
  return {memory, reinterpret_cast<std::byte*>(memory->data())};
}

at::Tensor Operations::host_tensor(at::IntArrayRef sizes) const {
  if (accelerator_ == nullptr) return at::empty(sizes, at::kLong);
  const std::int64_t bytes = c10::multiply_integers(sizes) * std::int64_t{sizeof(std::int64_t)};
  const auto memory = accelerator_->pinned(bytes);
  return at::from_blob(
      memory.get(), sizes, [memory](void*) {}, at::kLong);
}

std::int64_t Operations::label_count(std::int64_t step) const {
  if (!own_gradients_) return feed_.data->training_labels(step);
  const MicroBatch& last = microbatches_.back();
  const std::int64_t first = microbatches_.front().first;
  return feed_.data->training_labels(step, first, last.first + last.samples - first);
}

void Operations::fill_batch(MicroBatch& m, models::Batch& batch, std::int64_t step) {
  const Data& data = *feed_.data;
  auto* tokens = batch.tokens.data_ptr<std::int64_t>();
  auto* labels = batch.labels.data_ptr<std::int64_t>();
  const auto read = [&](std::int64_t* to_tokens, std::int64_t* to_labels) {
    if (feed_.training)
      data.training(step, m.first, m.samples, to_tokens, to_labels);
    else
      data.validation(feed_.evaluation * global_batch_ + m.first, m.samples, to_tokens, to_labels);
  };
  if (batch.positions.empty()) return read(tokens, labels);
  // Whole samples, of which this rank has some tokens.
  std::int64_t* const all_tokens = m.whole.data();
  std::int64_t* const all_labels = all_tokens + m.whole.size() / 2;
  read(all_tokens, all_labels);
  for (int sample = 0; sample < m.samples; ++sample)
    for (const std::int64_t position : batch.positions) {
      const std::int64_t at = sample * std::int64_t{model_.seq_len} + position;
      *tokens++ = all_tokens[at], *labels++ = all_labels[at];
    }
}

void Operations::stage(Id op, std::int64_t step) {
  const auto* const compute = std::get_if<program::Compute>(&role_.ops[op].work);
  if (compute == nullptr) return;
  MicroBatch& m = microbatches_.at(compute->microbatch);
  auto& [held, batch] = m.at(step);
  // Even keys are training steps, odd keys validation batches.
  const std::int64_t key = feed_.training ? 2 * step : 2 * feed_.evaluation + 1;
  if (std::exchange(held, key) == key) return;
  batch.step = step;
  batch.seed = train_.seed;
  batch.train = feed_.training;
  batch.first_sample = m.first;
  fill_batch(m, batch, step);
  batch.loss_weight = feed_.training ? 1.0 / static_cast<double>(label_count(step)) : 1;
}

Operations::LossPlace Operations::loss(std::int64_t step) {
  const std::size_t at = static_cast<std::size_t>(step) % loss_steps_.size();
  const LossPlace place{.here = reinterpret_cast<StepLoss*>(losses_.get()) + at,
                        .there = reinterpret_cast<StepLoss*>(losses_there_.get()) + at};
  if (std::exchange(loss_steps_[at], step) == step) return place;
  *place.here = {};
  if (accelerator_ != nullptr) accelerator_->copy(place.there, place.here, sizeof(StepLoss));
  return place;
}

void Operations::add_loss(std::int64_t step, const at::Tensor& sum) {
  const std::lock_guard lock(loss_lock_);
  const LossPlace place = loss(step);
  const auto number = [&](double& of) {
    const at::Device device = torch_device(memory_.device());
    return at::for_blob(&of, {})
        .options(at::TensorOptions(at::kDouble).device(device))
        .target_device(device)
        .make_tensor();
  };
  if (accelerator_ == nullptr) {
    number(place.here->sum).add_(sum);
    return;
  }
  number(place.there->sum).add_(sum);
  accelerator_->copy(&place.here->sum, &place.there->sum, sizeof(double));
}

StepLoss Operations::take_loss(std::int64_t step) {
  const std::lock_guard lock(loss_lock_);
  const std::size_t at = static_cast<std::size_t>(step) % loss_steps_.size();
  if (std::exchange(loss_steps_[at], -1) != step) return {};
  return reinterpret_cast<const StepLoss*>(losses_.get())[at];
}

const models::Batch& Operations::batch(const program::Compute& work, std::int64_t step,
                                       models::Batch& room) {
  const models::Batch& staged = microbatches_.at(work.microbatch).at(step).batch;
  const model::SegmentKind kind = model_.segments.at(work.segment).kind;
  const bool reads = kind == model::SegmentKind::embedding || kind == model::SegmentKind::head;
  if (accelerator_ == nullptr || !reads) return staged;
  const auto uploaded = [&](const at::Tensor& tensor) {
    return tensor.to(tensor.options().device(torch_device(memory_.device())), true, true);
  };
  room = staged;
  room.tokens = uploaded(staged.tokens);
  room.labels = uploaded(staged.labels);
  return room;
}

bool Operations::computes_on_host(const Prepared& p) const {
  const bool touches_host = std::ranges::any_of(p.operands, [&](const Operand& operand) {
    return role_.storages[operand.storage].place == program::Place::host;
  });
  return std::visit(
      program::overloaded{
          [&](const program::Kernel& kernel) { return touches_host || !accelerator_->has(kernel); },
          [&](const program::Update&) { return touches_host; },
          [&](const program::Collective&) { return p.packets != nullptr; },
          [](const program::Put&) { return true; },
          [](const program::Take&) { return true; },
          [](const auto&) { return false; },
      },
      p.op->work);
}

Kernels& Operations::kernels(const Prepared& p) {
  if (accelerator_ == nullptr || p.on_host) return host_kernels_;
  return *accelerator_;
}

std::vector<std::string> Operations::host_work() const {
  std::set<std::string> names;
  for (const auto& p : ops_) {
    if (!p->on_host) continue;
    const auto* const kernel = std::get_if<program::Kernel>(&p->op->work);
    if (kernel != nullptr)
      names.emplace(name_of(kernel->kind));
    else
      names.insert(std::holds_alternative<program::Update>(p->op->work) ? "update" : "messages");
  }
  return {names.begin(), names.end()};
}

}  // namespace rehearse::runtime
