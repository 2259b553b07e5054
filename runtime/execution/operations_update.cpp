// Prepares and executes updates: intervals of weight decay, skipped steps, the optimizer's step.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "engine/model/tensor_split.h"
#include "runtime/execution/prepared.h"

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
  numbers_ = memory_.device().allocate(
      static_cast<std::int64_t>(sizeof(SkipCount) + updates.size() * sizeof(StepScalars)));
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
  const NormAndScale gradients = norm_and_scale(p, step);
  {
    const std::lock_guard lock(loss_lock_);
    decide(settings, gradients, train_.clip, *skips_, *p.scalars,
           gradients.squares == nullptr ? nullptr : &loss(step).square_norm);
  }
  const auto floats = [&](program::Slot slot) {
    const Operand* operand = p.at(slot);
    if (operand == nullptr) return static_cast<float*>(nullptr);
    const at::Tensor state = memory_.write(*operand, step);
    const bool moment = slot == program::Slot::moment1 || slot == program::Slot::moment2;
    if (moment && work.restart > 0 && step % work.restart == 0) state.zero_();
    return state.data_ptr<float>();
  };
  float* const moment1 = floats(program::Slot::moment1);
  float* const moment2 = floats(program::Slot::moment2);
  float* const master = floats(program::Slot::master);
  const at::Tensor gradient = memory_.read(grad, step);
  auto* const param_bytes = static_cast<char*>(new_param.data_ptr());
  const auto* const grad_bytes = static_cast<const char*>(gradient.data_ptr());
  for (const DecayRun& run : p.runs)
    runtime::update(settings,
                    {.param = param_bytes + run.begin * size_of(param.dtype),
                     .grad = grad_bytes + run.begin * size_of(grad.dtype),
                     .moment1 = moment1 + run.begin,
                     .moment2 = moment2 == nullptr ? nullptr : moment2 + run.begin,
                     .master = master == nullptr ? nullptr : master + run.begin,
                     .param_type = param.dtype,
                     .grad_type = grad.dtype,
                     .elements = run.end - run.begin,
                     .fresh = param.mode == program::Mode::write},
                    run.decay, *p.scalars);
}

}  // namespace rehearse::runtime
