// TopK-Sync (Sun 2026, section 4.1; Aji & Heafield 2017; Lin et al., ICLR 2018): synchronous data
// parallelism that sends the k largest entries of (gradient + residual), by default 10%. With error
// feedback: entries that are not sent stay in the residual. It is the adaptive method's sparse
// exchange with one density for all layers.
#include "engine/methods/lowering/stage/stage.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

const Register topk_sync(
    "topk-sync", {.summary = "data parallelism, uniform top-k gradients with error feedback",
                  .source = "Sun 2026, section 4.1; Lin et al., ICLR 2018",
                  .combines = {.tp = true, .max_zero = 2, .shares = true, .sparse = true},
                  .defaults =
                      [](plan::Plan& plan) {
                        if (!plan.exchange.sparse.reduction)
                          plan.exchange.sparse.reduction = plan::Reduction::sparse;
                      },
                  .sync = sparse});

}  // namespace
}  // namespace rehearse::methods
