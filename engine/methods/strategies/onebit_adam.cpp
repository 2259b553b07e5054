// 1-bit Adam (Tang et al., ICML 2021): data parallelism by Adam whose first moment, once the second
// one has been frozen, is summed as signs (lowering/onebit_adam.cpp). Defaults are those of
// DeepSpeed's onebit/adam.py: 100,000 steps of Adam before.
#include "engine/methods/lowering/exchange/quantised.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

const Register method(
    "onebit-adam",
    {.summary = "data parallelism, Adam whose momentum is summed as signs",
     .source = "Tang et al., ICML 2021",
     .combines = {.tp = true,
                  .clip = false,
                  .low_precision = false,
                  .shares = true,
                  .sgd = false,
                  .offload = false,
                  .quantised = true,
                  .freezes = true},
     .defaults =
         [](plan::Plan& plan) {
           plan::Exchange& x = plan.exchange;
           if (!x.quantised.bits) x.quantised.bits = 1;
           if (!x.quantised.error_feedback) x.quantised.error_feedback = true;
           if (!x.quantised.freeze) x.quantised.freeze = 100'000;
           x.fp32_gradients = x.fp32_gradients || plan.precision != program::DType::f32;
         },
     .check = [](const plan::Plan& plan,
                 const model::ModelSpec&) { check_codes(plan, program::Compressor::sign_rms); },
     .sync = [](const plan::Plan&) -> const GradientSync& { return onebit_adam(); }});

}  // namespace
}  // namespace rehearse::methods
