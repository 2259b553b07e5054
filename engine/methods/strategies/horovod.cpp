// Horovod (Sergeev & Del Balso 2018): data parallelism in which a coordinator on each rank agrees
// with the others which gradients are ready, fuses them in one buffer and all-reduces the buffer
// (lowering/fused.cpp). Defaults are those of horovod/horovod at 2626dc8: buffers of 128 MiB, a
// cycle of 1 ms, a cache of 1024 tensors. HOROVOD_HIERARCHICAL_ALLREDUCE is method.collective =
// "hierarchical".
#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

const Register method("horovod",
                      {.summary = "data parallelism, a coordinator fuses gradients that are ready",
                       .source = "Sergeev & Del Balso 2018",
                       .combines = {.shares = true, .offload = false, .cycles = true},
                       .defaults =
                           [](plan::Plan& plan) {
                             plan::Exchange& x = plan.exchange;
                             if (!x.bucket) x.bucket = Bytes(128 << 20);
                             if (!x.fusion.cycle_time) x.fusion.cycle_time = Seconds(0.001);
                             if (!x.fusion.response_cache) x.fusion.response_cache = 1024;
                           },
                       .sync = [](const plan::Plan&) -> const GradientSync& { return horovod(); }});

}  // namespace
}  // namespace rehearse::methods
