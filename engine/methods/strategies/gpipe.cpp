// GPipe: all forwards, then all backwards, one flush a step; bubble (S-1)/(M+S-1); all M
// micro-batches alive at once, which is why it is usually run with recompute (Huang et al., NeurIPS
// 2019).
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

const Register gpipe("gpipe",
                     {.summary = "pipeline, all forwards then all backwards",
                      .source = "Huang et al., NeurIPS 2019",
                      .combines = {.pp = true, .tp = true, .max_zero = 1, .shares = true},
                      .pp = 4,
                      .order = [](const plan::Plan&,
                                  const model::ModelSpec&) { return all_forward_all_backward; },
                      .proposed = plan::Pipeline::gpipe});

}  // namespace
}  // namespace rehearse::methods
