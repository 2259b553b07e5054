// Zero-bubble pipelines (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2). The
// backward of a micro-batch is two actions. B computes the gradient of the stage's input, which the
// stage before waits for; W computes the gradients of matrices, which only the update waits for, so
// W fills the bubble. These are the schedules that the paper draws by hand. A factor k is 1 in
// ZB-H1 and 2 in ZB-H2: stage s of S begins with k (S - s - 1) forwards, then does F, B and W in
// turn, where W is k s micro-batches behind B.
//
//   S = 3, M = 6, k = 1; F, B and W drawn equally long, the digit is the micro-batch
//   stage 0   F0 F1 F2 .  .  B0 W0 F3 B1 W1 F4 B2 W2 F5 B3 W3 B4 W4 B5 W5
//   stage 1   .  F0 F1 .  B0 F2 B1 W0 F3 B2 W1 F4 B3 W2 F5 B4 W3 B5 W4 W5
//   stage 2   .  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 F4 B4 W2 F5 B5 W3 W4 W5
//
//                                 1F1B              ZB-H1             ZB-H2
//   bubble                        (S-1)(F+B+W)      (S-1)(F+B-W)      (S-1)(F+B-2W)
//   micro-batches held            S - s             S                 2 S - 1
//
// The bubble of ZB-H2 needs steps that overlap: a stage begins its next step when its own update is
// done, while later stages still compute. Clipping and fp16 forbid that, because all stages wait
// for one norm; then S - 1 forwards remain. The paper's way around it, an update that is undone if
// the norm turns out too large, is not implemented.
#include <algorithm>

#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

template <int K>
std::vector<Action> actions_of(const plan::Plan& plan, int stage) {
  const int total = plan.schedule.micro_batches,
            warm_up = std::min(K * (plan.mesh.pp - stage - 1), total), behind = K * stage;
  std::vector<Action> actions;
  for (int k = 0; k < total + warm_up + behind; ++k) {
    const int backward = k - warm_up, weight = backward - behind;
    if (k < total) actions.push_back({.pass = program::Pass::forward, .microbatch = k});
    if (backward >= 0 && backward < total)
      actions.push_back({.pass = program::Pass::backward_input, .microbatch = backward});
    if (weight >= 0 && weight < total)
      actions.push_back({.pass = program::Pass::backward_weight, .microbatch = weight});
  }
  return actions;
}

template <int K>
int in_flight(const plan::Plan& plan, int) {
  return std::min(K * (plan.mesh.pp - 1) + 1, plan.schedule.micro_batches);
}
template <int K>
int halved(const plan::Plan& plan, int stage) {
  return in_flight<K>(plan, stage) -
         std::min(K * (plan.mesh.pp - stage - 1) + 1, plan.schedule.micro_batches);
}
template <int K>
const PassOrder order{.actions = actions_of<K>, .in_flight = in_flight<K>, .halved = halved<K>};

template <int K>
Strategy zero_bubble(const char* what) {
  return {.summary = what,
          .source = "Qi et al., ICLR 2024",
          .combines = {.pp = true, .tp = true, .max_zero = 1, .recompute = false, .shares = true},
          .pp = 4,
          .order = [](const plan::Plan&, const model::ModelSpec&) { return order<K>; },
          .proposed_to_itself = true};
}

const Register h1("zb-h1", zero_bubble<1>("zero-bubble pipeline with the memory of 1F1B"));
const Register h2("zb-h2", zero_bubble<2>("zero-bubble pipeline with twice the memory of 1F1B"));

}  // namespace
}  // namespace rehearse::methods
