// Data parallelism: every rank holds the whole model and takes its share of the batch. Gradients
// are all-reduced bucket by bucket while backward still runs (PyTorch DistributedDataParallel, Li
// et al., VLDB 2020; Horovod). With several micro-batches: gradient accumulation, one reduction per
// step. All ranks take equally many samples unless method.shares says otherwise, so the slowest
// device determines the step time.
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

const Register ddp("ddp", {.summary = "data parallelism, bucketed all-reduce under backward",
                           .source = "Li et al., VLDB 2020",
                           .combines = {.tp = true, .max_zero = 3, .context = true, .shares = true},
                           .proposed = plan::Pipeline::one_f_one_b,
                           .baseline = true,
                           .with_model_parallelism = "megatron"});

}  // namespace
}  // namespace rehearse::methods
