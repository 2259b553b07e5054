// Data parallelism: every rank holds the whole model and takes its share of the batch; gradients
// are all-reduced bucket by bucket under backward (PyTorch DistributedDataParallel, Li et al., VLDB
// 2020; Horovod). With micro-batches: gradient accumulation, one reduction a step. Unlike devices
// get equal shares unless method.shares says otherwise, so the slowest sets the pace.
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

const Register ddp("ddp", {.summary = "data parallelism, bucketed all-reduce under backward",
                           .source = "Li et al., VLDB 2020",
                           .combines = {.tp = true, .max_zero = 3, .shares = true},
                           .proposed = plan::Pipeline::one_f_one_b,
                           .baseline = true,
                           .with_model_parallelism = "megatron"});

}  // namespace
}  // namespace rehearse::methods
