// The adaptive method (Sun 2026, section 3): tensor parallelism inside nodes, a plain or
// interleaved pipeline across them, optimizer state sharded as in ZeRO, different numbers of
// samples on different devices, and each layer's gradient summed dense or sparse. The planner makes
// these choices; this file only says what a plan means.
#include <fmt/format.h>

#include "engine/methods/lowering/stage/stage.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

PassOrder order_of(const plan::Plan& plan, const model::ModelSpec&) {
  if (plan.schedule.virtual_stages > 1) return interleave;
  if (plan.mesh.pp == 1) return one_by_one;
  switch (plan.schedule.pipeline) {
    case plan::Pipeline::gpipe:
      return all_forward_all_backward;
    case plan::Pipeline::interleaved:
      return interleave;
    case plan::Pipeline::one_f_one_b:
      break;
  }
  return one_forward_one_backward;
}

const Register adaptive(
    "adaptive",
    {.summary = "pipeline x tensor x data parallelism, each layer's gradient dense or sparse",
     .source = "Sun 2026, section 3",
     .combines = {.pp = true,
                  .tp = true,
                  .max_zero = 2,
                  .interleave = true,
                  .shares = true,
                  .sparse = true},
     .defaults =
         [](plan::Plan& plan) {
           // Several chunks on a rank imply an interleaved pipeline.
           if (plan.schedule.virtual_stages > 1)
             plan.schedule.pipeline = plan::Pipeline::interleaved;
         },
     .check =
         [](const plan::Plan& plan, const model::ModelSpec& model) {
           if (!plan.exchange.sparse.layers.empty() &&
               plan.exchange.sparse.layers.size() != model.segments.size())
             refuse("layers", fmt::format("{}", plan.exchange.sparse.layers.size()),
                    fmt::format("must be one exchange for each of the {} segments of {}",
                                model.segments.size(), model.name));
           if (plan.mesh.pp > 1 && plan.schedule.pipeline == plan::Pipeline::interleaved &&
               plan.schedule.virtual_stages < 2)
             refuse("virtual_stages", "1", "an interleaved pipeline needs at least 2");
           if (order_of(plan, model).actions == interleave.actions) check_interleaving(plan);
         },
     .order = order_of,
     .sync = sparse,
     .planned = true});

}  // namespace
}  // namespace rehearse::methods
