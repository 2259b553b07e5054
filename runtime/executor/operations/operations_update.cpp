// Prepares and executes updates: intervals of weight decay, skipped steps, the optimizer's step.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "engine/model/tensor_split.h"
#include "runtime/executor/operations/prepared.h"

namespace rehearse::runtime {

void Operations::prepare_update(Prepared& p) {
  const Operand& param = p.need(program::Slot::param);
  const std::int64_t end = param.begin + param.elements;
  std::vector<DecayRun>& runs = p.runs;
  const auto append = [&](std::int64_t begin, std::int64_t stop, bool decay) {
    begin = std::max(begin, param.begin) - param.begin;
    stop = std::min(stop, end) - param.begin;
    if (begin >= stop) return;
    if (!runs.empty() && runs.back().end == begin && runs.back().decay == decay)
      runs.back().end = stop;
    else
      runs.push_back({begin, stop, decay});
  };
  // Elements that no tensor covers are padding. Their gradients are 0, so the update keeps them.
  std::int64_t done = param.begin;
  for (const tensors::ParamPiece& piece : map_.storages[param.storage].pieces) {
    if (piece.end <= param.begin || piece.begin >= end) continue;
    append(done, piece.begin, false);
    for (const tensors::TensorInterval& tensor :
         tensors::tensors_of(model_.groups[piece.group], map_.tp_size)) {
      const std::int64_t shift = piece.begin - piece.offset;
      append(std::max(tensor.begin + shift, piece.begin), std::min(tensor.end + shift, piece.end),
             tensor.spec->decay);
    }
    done = piece.end;
  }
  append(done, end, false);
}

/// Gives the updates their numbers in the device's memory: how many were skipped, and the scalars
/// of each.
void Operations::prepare_numbers() {
  std::vector<Prepared*> updates;
  Id lane = none;  // of updates that may be skipped
  for (const auto& p : ops_) {
    if (!std::holds_alternative<program::Update>(p->op->work)) continue;
    updates.push_back(p.get());
    if (p->at(program::Slot::norm) == nullptr) continue;
    if (lane != none && lane != p->op->lane)
      throw ProgramError(
          fmt::format("role {}: updates that depend on a norm are on two lanes, {} "
                      "and {}, and would count skipped steps at the same time",
                      role_.name, role_.lanes[lane].name, role_.lanes[p->op->lane].name));
    lane = p->op->lane;
  }
  const auto bytes =
      static_cast<std::int64_t>(sizeof(SkipCount) + updates.size() * sizeof(StepScalars));
  // Updates on the host reach these numbers, too.
  const bool pinned = std::ranges::any_of(updates, [](const Prepared* p) { return p->on_host; });
  numbers_ = pinned ? accelerator_->pinned(bytes) : memory_.device().allocate(bytes);
  skips_ = reinterpret_cast<SkipCount*>(numbers_.get());
  auto* const scalars = reinterpret_cast<StepScalars*>(numbers_.get() + sizeof(SkipCount));
  for (std::size_t i = 0; i < updates.size(); ++i) updates[i]->scalars = scalars + i;
}

std::int64_t Operations::skipped_updates() const {
  SkipCount count;
  memory_.device().fetch(numbers_.get(), reinterpret_cast<std::byte*>(&count), sizeof count);
  return count.skipped;
}

void Operations::skipped_updates(std::int64_t skipped) {
  const SkipCount count{.skipped = skipped};
  memory_.device().store(numbers_.get(), reinterpret_cast<const std::byte*>(&count), sizeof count);
}

void Operations::update(Prepared& p, const program::Update& work, std::int64_t step) {
  const Operand& param = p.need(program::Slot::param);
  const Operand& grad = p.need(program::Slot::grad);
  const at::Tensor old_param = memory_.read(param, step);
  const at::Tensor new_param = memory_.write(param, step);
  // With several versions, the new version starts as a copy of the last one.
  if (old_param.data_ptr() != new_param.data_ptr()) new_param.copy_(old_param);
  OptimizerStep settings = optimizer_step(train_, optimizer_, step);
  settings.restart = work.restart;
  if (work.frozen > 0 && step >= work.frozen) settings.frozen = work.frozen;
  Kernels& on = kernels(p);
  const bool queued = &on != &host_kernels_;
  const NormAndScale gradients = norm_and_scale(p, step);
  {
    const std::lock_guard lock(loss_lock_);
    const LossPlace place = gradients.squares == nullptr ? LossPlace{} : loss(step);
    double* const here = place.here == nullptr ? nullptr : &place.here->square_norm;
    double* const there = place.here == nullptr ? nullptr : &place.there->square_norm;
    on.decide(settings, gradients, train_.clip, skips_, p.scalars, queued ? there : here);
    if (queued && here != nullptr) accelerator_->copy(here, there, sizeof *here);
  }
  program::DType moment_type = program::DType::f32;
  const auto state = [&](program::Slot slot) -> char* {
    const Operand* operand = p.at(slot);
    if (operand == nullptr) return nullptr;
    const at::Tensor tensor = memory_.write(*operand, step);
    if (slot != program::Slot::master) {
      moment_type = operand->dtype;
      if (work.restart > 0 && step % work.restart == 0) tensor.zero_();
    }
    return static_cast<char*>(tensor.data_ptr());
  };
  const auto element_of = [](char* bytes, std::int64_t element, program::DType type) {
    return bytes == nullptr ? nullptr : bytes + element * size_of(type);
  };
  char* const moment1 = state(program::Slot::moment1);
  char* const moment2 = state(program::Slot::moment2);
  char* const master = state(program::Slot::master);
  const at::Tensor gradient = memory_.read(grad, step);
  auto* const param_bytes = static_cast<char*>(new_param.data_ptr());
  auto* const grad_bytes = static_cast<char*>(gradient.data_ptr());
  for (const DecayRun& run : p.runs) {
    const OptimizerInterval interval{
        .param = element_of(param_bytes, run.begin, param.dtype),
        .grad = element_of(grad_bytes, run.begin, grad.dtype),
        .moment1 = element_of(moment1, run.begin, moment_type),
        .moment2 = element_of(moment2, run.begin, moment_type),
        .master = reinterpret_cast<float*>(element_of(master, run.begin, program::DType::f32)),
        .param_type = param.dtype,
        .grad_type = grad.dtype,
        .moment_type = moment_type,
        .elements = run.end - run.begin,
        .fresh = param.mode == program::Mode::write};
    on.update(settings, interval, run.decay, p.scalars);
  }
}

}  // namespace rehearse::runtime
