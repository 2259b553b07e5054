// The sync of 1-bit Adam (Tang et al., ICML 2021, algorithm 1; DeepSpeed, runtime/fp16/onebit). Its
// first `freeze` steps are those of Adam, with gradients all-reduced whole. From then on the second
// moment stays as it is, and ranks sum the first moment in place of the gradient, as signs in the
// two phases of quantised.h:
//
//   steps before `freeze`   G --all-reduce--> sum of gradients --Adam--> W, m, v
//   steps from it on        G = (1 - beta1) G + beta1 m / n --two phases--> m --> W by m and v
//
// Each of n ranks adds its part of the next moment, so that their sum is beta1 m + (1 - beta1) g.
// What signs miss is kept as in quantised.h.
#include "engine/methods/lowering/exchange/quantised.h"
#include "engine/methods/lowering/updates.h"

namespace rehearse::methods {
namespace {

class OneBitAdam final : public Quantised {
 public:
  OneBitAdam() : Quantised(program::Compressor::sign_rms) {}

 private:
  program::When when(const plan::Plan& plan) const override {
    return {.from = *plan.exchange.quantised.freeze};
  }

  void exchange(Stage& stage, const Bucket& b, int shift) const override {
    const plan::Plan& plan = stage.plan();
    if (stage.dp())
      all_reduce(stage, b.views.grad, shift, {.until = *plan.exchange.quantised.freeze});
    const program::Layout partial{.partial = stage.dp()};
    stage.role().op(
        "compute",
        program::Kernel{.kind = program::KernelKind::momentum, .scale = 1.0 / plan.mesh.dp},
        {ref(b.views.grad, program::Slot::target, program::Mode::add, 0, 0, partial),
         ref(b.views.moment1, program::Slot::moment1, program::Mode::read, 0, 1)},
        shift, when(plan));
    Quantised::exchange(stage, b, shift);
  }

  void update(Stage& stage, const Bucket& b, int shift) const override {
    emit_update(stage, b, {}, shift, {.frozen = *stage.plan().exchange.quantised.freeze});
  }
};

}  // namespace

const GradientSync& onebit_adam() {
  static const OneBitAdam sync;
  return sync;
}

}  // namespace rehearse::methods
