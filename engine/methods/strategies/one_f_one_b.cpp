// 1F1B with flush: the same bubble as GPipe, (S-1)/(M+S-1), but a stage keeps at most as many
// micro-batches alive as stages follow it (PipeDream-Flush, Narayanan et al., ICML 2021).
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
     .combines = {.pp = true, .tp = true, .max_zero = 1, .shares = true},
     .pp = 4,
     .order = [](const plan::Plan&, const model::ModelSpec&) { return one_forward_one_backward; },
     .proposed = plan::Pipeline::one_f_one_b,
     .baseline = true});

}  // namespace
}  // namespace rehearse::methods
