// Methods in which data-parallel ranks train apart for H steps (`local_steps`) and then agree:
//   local-sgd   the weights of all ranks become their mean (Stich, ICLR 2019; in PyTorch,
//               PeriodicModelAverager of torch.distributed.algorithms.model_averaging, whose
//               documentation has H = 4)
//   diloco      the ranks step from the weights that they last agreed on, the anchor, by SGD with
//               Nesterov momentum. Its gradient is the mean of what the ranks have moved by:
//               anchor - weights. Then all ranks continue from the new anchor (Douillard et al.
//               2023, algorithm 1: H = 500, learning rate 0.7, momentum 0.9).
//
// Between exchanges nothing is sent. The optimizer state of a rank stays its own in both. The
// exchange follows the update of every H-th step, in the order in which the next forward reads the
// weights, and so it overlaps with that.
#include <fmt/format.h>

#include <ranges>

#include "engine/methods/lowering/own_weights.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

program::When exchanges(const Stage& stage) {
  return {.every = *stage.plan().exchange.averaging.local_steps};
}

class LocalSgd : public OwnWeights {
 public:
  void finish(Stage& stage, int shift) const override {
    for (const Bucket& b : stage.buckets()) update(stage, b, shift);
    for (const Bucket& b : std::ranges::reverse_view(stage.buckets())) agree(stage, b, shift);
  }

 protected:
  /// Makes the weights of a bucket equal on all ranks.
  virtual void agree(Stage& stage, const Bucket& b, int shift) const {
    if (!stage.dp()) return;
    const program::When when = exchanges(stage);
    program::Ref part = weights(stage, b, program::Slot::target, program::Mode::write);
    part.layout = {.partial = stage.dp()};
    kernel(stage, {.kind = program::KernelKind::weigh, .scale = 1.0 / stage.plan().mesh.dp},
           {weights(stage, b, program::Slot::source, program::Mode::read), part}, shift, when);
    sum(stage, part.view, stage.weights_layout(), shift, when);
    round(stage, b, shift, when);
  }
};

class DiLoCo final : public LocalSgd {
 public:
  void declare(Stage& stage, Bucket& b) const override {
    LocalSgd::declare(stage, b);
    b.views.anchor = storage_of(stage.role(), b, "anchor.", program::Life::state);
    b.views.outer_moment = storage_of(stage.role(), b, "outer.M.", program::Life::state);
    b.views.outer_grad = storage_of(stage.role(), b, "outer.G.", program::Life::value);
  }

 private:
  void agree(Stage& stage, const Bucket& b, int shift) const override {
    const plan::Averaging& how = stage.plan().exchange.averaging;
    const program::When when = exchanges(stage);
    using program::Mode, program::Slot;
    kernel(stage, {.kind = program::KernelKind::drift, .scale = 1.0 / stage.plan().mesh.dp},
           {ref(b.views.anchor, Slot::anchor, Mode::read, 0, 1),
            weights(stage, b, Slot::source, Mode::read),
            ref(b.views.outer_grad, Slot::target, Mode::write, 0, 0, {.partial = stage.dp()})},
           shift, when);
    sum(stage, b.views.outer_grad, {}, shift, when);
    kernel(stage,
           {.kind = program::KernelKind::outer_step,
            .scale = *how.outer_lr,
            .momentum = *how.outer_momentum},
           {ref(b.views.outer_grad, Slot::source, Mode::read),
            ref(b.views.anchor, Slot::anchor, Mode::add, 0, 1),
            ref(b.views.outer_moment, Slot::outer_moment, Mode::add, 0, 1),
            weights(stage, b, Slot::target, Mode::write)},
           shift, when);
    round(stage, b, shift, when);
  }
};

constexpr Combines apart{
    .tp = true, .clip = false, .low_precision = false, .offload = false, .local_steps = true};

const Register local_sgd("local-sgd",
                         {.summary = "data parallelism, ranks train apart and average weights",
                          .source = "Stich, ICLR 2019",
                          .combines = apart,
                          .defaults =
                              [](plan::Plan& plan) {
                                plan::Averaging& how = plan.exchange.averaging;
                                if (!how.local_steps) how.local_steps = 4;
                              },
                          .sync = [](const plan::Plan&) -> const GradientSync& {
                            static const LocalSgd sync;
                            return sync;
                          }});

const Register diloco("diloco",
                      {.summary = "ranks train apart, an outer optimizer steps by what they moved",
                       .source = "Douillard et al. 2023",
                       .combines =
                           [] {
                             Combines can = apart;
                             can.outer = true;
                             return can;
                           }(),
                       .defaults =
                           [](plan::Plan& plan) {
                             plan::Averaging& how = plan.exchange.averaging;
                             if (!how.local_steps) how.local_steps = 500;
                             if (!how.outer_lr) how.outer_lr = 0.7;
                             if (!how.outer_momentum) how.outer_momentum = 0.9;
                           },
                       .sync = [](const plan::Plan&) -> const GradientSync& {
                         static const DiLoCo sync;
                         return sync;
                       }});

}  // namespace
}  // namespace rehearse::methods
