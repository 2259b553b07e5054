// PowerSGD (Vogels et al., NeurIPS 2019): data parallelism whose matrices of gradients are summed
// as factors of a low rank (lowering/low_rank.cpp). Defaults are those of PyTorch's powerSGD_hook:
// rank 1, error feedback, a warm start, and 1000 steps before it starts.
#include <fmt/format.h>

#include "engine/base/refusal.h"
#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

/// A warm start and error feedback go on from a step before.
void check(const plan::Plan& plan, const model::ModelSpec&) {
  const plan::Exchange& x = plan.exchange;
  if (*x.low_rank.start < 2 && (*x.quantised.error_feedback || *x.low_rank.warm_start))
    refuse("start", fmt::format("{}", *x.low_rank.start),
           "must be at least 2 with error_feedback or warm_start, as in PyTorch; nearest: 2");
}

const Register method(
    "powersgd",
    {.summary = "data parallelism, matrices of gradients summed as factors of a low rank",
     .source = "Vogels et al., NeurIPS 2019",
     .combines =
         {.tp = true, .low_precision = false, .shares = true, .offload = false, .low_rank = true},
     .defaults =
         [](plan::Plan& plan) {
           plan::Exchange& x = plan.exchange;
           if (!x.low_rank.rank) x.low_rank.rank = 1;
           if (!x.low_rank.warm_start) x.low_rank.warm_start = true;
           if (!x.quantised.error_feedback) x.quantised.error_feedback = true;
           if (!x.low_rank.start) x.low_rank.start = 1000;
           x.fp32_gradients = x.fp32_gradients || plan.precision != program::DType::f32;
         },
     .check = check,
     .sync = [](const plan::Plan&) -> const GradientSync& { return low_rank(); }});

}  // namespace
}  // namespace rehearse::methods
