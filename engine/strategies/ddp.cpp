// Data parallelism: every rank holds the whole model and takes its share of the batch; gradients
// are all-reduced bucket by bucket under backward (PyTorch DistributedDataParallel, Li et al., VLDB
// 2020; Horovod). With micro-batches: gradient accumulation, one reduction a step. Unlike devices
// get equal shares unless method.shares says otherwise, so the slowest sets the pace.
#include "engine/lowering/stage.h"
#include "engine/strategy.h"

namespace rehearse {
namespace {

const Register ddp("ddp", {.summary = "data parallelism, bucketed all-reduce under backward",
                           .source = "Li et al., VLDB 2020",
                           .combines = {.tp = true, .max_zero = 3, .shares = true},
                           .compile = [](const Plan& plan, const ModelSpec& model) {
                             return lower(plan, model, one_by_one, gradient_sync(plan));
                           }});

}  // namespace
}  // namespace rehearse
