// 1F1B with flush (PipeDream-Flush, Narayanan et al., ICML 2021). With S stages and M micro-batches
// the bubble is (S-1)/(M+S-1) of a step, as in GPipe, but stage s holds the activations of at most
// S - s micro-batches. It warms up with S - s - 1 forwards, then does forward and backward in turn.
//
//   S = 3, M = 4; F forward, B backward (drawn equally long), the digit is the micro-batch
//   stage 0   F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
//   stage 1   .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .
//   stage 2   .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .
#include <algorithm>

#include "engine/methods/strategy.h"

namespace rehearse::methods {

const PassOrder one_forward_one_backward{
    .actions =
        [](const plan::Plan& plan, int stage) {
          const int warm_up = std::min(plan.mesh.pp - stage - 1, plan.schedule.micro_batches);
          std::vector<Action> actions;
          for (int k = 0; k < plan.schedule.micro_batches + warm_up; ++k) {
            if (k < plan.schedule.micro_batches)
              actions.push_back({.pass = program::Pass::forward, .microbatch = k});
            if (k >= warm_up)
              actions.push_back({.pass = program::Pass::backward, .microbatch = k - warm_up});
          }
          return actions;
        },
    .in_flight =
        [](const plan::Plan& plan, int stage) {
          return std::min(plan.mesh.pp - stage, plan.schedule.micro_batches);
        },
};

namespace {

const Register one_f_one_b(
    "1f1b",
    {.summary = "pipeline, one forward one backward, flushed each step",
     .source = "Narayanan et al., ICML 2021",
     .combines = {.pp = true, .tp = true, .max_zero = 3, .context = true, .shares = true},
     .pp = 4,
     .order = [](const plan::Plan&, const model::ModelSpec&) { return one_forward_one_backward; },
     .proposed = plan::Pipeline::one_f_one_b,
     .baseline = true});

}  // namespace
}  // namespace rehearse::methods
