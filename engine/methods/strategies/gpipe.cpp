// GPipe (Huang et al., NeurIPS 2019): all forwards, then all backwards, one flush per step. With S
// stages and M micro-batches the bubble is (S-1)/(M+S-1) of a step. A stage holds the activations
// of all M micro-batches at once, so GPipe is usually run with recompute.
//
//   S = 3, M = 4; F forward, B backward (drawn equally long), the digit is the micro-batch
//   stage 0   F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3
//   stage 1   .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .
//   stage 2   .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .
#include "engine/methods/strategy.h"

namespace rehearse::methods {

const PassOrder all_forward_all_backward{
    .actions =
        [](const plan::Plan& plan, int) {
          std::vector<Action> actions;
          for (const program::Pass pass : {program::Pass::forward, program::Pass::backward})
            for (int mb = 0; mb < plan.schedule.micro_batches; ++mb)
              actions.push_back({.pass = pass, .microbatch = mb});
          return actions;
        },
    .in_flight = [](const plan::Plan& plan, int) { return plan.schedule.micro_batches; },
};

namespace {

const Register gpipe(
    "gpipe",
    {.summary = "pipeline, all forwards then all backwards",
     .source = "Huang et al., NeurIPS 2019",
     .combines = {.pp = true, .tp = true, .max_zero = 3, .context = true, .shares = true},
     .pp = 4,
     .order = [](const plan::Plan&, const model::ModelSpec&) { return all_forward_all_backward; },
     .proposed = plan::Pipeline::gpipe});

}  // namespace
}  // namespace rehearse::methods
