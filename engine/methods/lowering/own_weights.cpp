#include "engine/methods/lowering/own_weights.h"

#include <utility>

#include "engine/methods/lowering/updates.h"

namespace rehearse::methods {

void OwnWeights::reduce(Stage& stage, Bucket& b, int, bool last, int shift) const {
  if (last) reduce_model_axes(stage, b, 0, shift);
}

void OwnWeights::update(Stage& stage, const Bucket& b, int shift, Id changed, program::Update how) {
  emit_update(stage, b, stage.weights_layout(), shift, how, changed);
}

program::Ref OwnWeights::weights(Stage& stage, const Bucket& b, program::Slot slot,
                                 program::Mode mode, int age) {
  return ref(stage.optimizer().updated(b), slot, mode, 0, age, stage.weights_layout());
}

void OwnWeights::kernel(Stage& stage, program::Kernel kernel, std::vector<program::Ref> refs,
                        int shift, program::When when) {
  stage.role().op("compute", kernel, std::move(refs), shift, when);
}

void OwnWeights::round(Stage& stage, const Bucket& b, int shift, program::When when) {
  if (b.views.master == none) return;
  kernel(stage, {.kind = program::KernelKind::cast},
         {weights(stage, b, program::Slot::source, program::Mode::read),
          ref(b.views.weight, program::Slot::target, program::Mode::write, 0, 0,
              stage.weights_layout())},
         shift, when);
}

void OwnWeights::sum(Stage& stage, Id view, program::Layout result, int shift, program::When when) {
  if (!stage.dp()) return;
  stage.role().op(
      "dp", stage.collective(stage.axis_channel(stage.dp()), program::Move::all_reduce),
      {ref(view, program::Slot::source, program::Mode::read, 0, 0, {.partial = stage.dp()}),
       ref(view, program::Slot::target, program::Mode::write, 0, 0, result)},
      shift, when);
}

}  // namespace rehearse::methods
