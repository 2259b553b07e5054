// Megatron-LM: tensor parallelism inside nodes (column- then row-parallel products,
// vocabulary-parallel embedding and loss; with sequence parallelism reduce-scatter and all-gather
// in the place of all-reduce), a 1F1B pipeline across them, data parallelism over the rest (Shoeybi
// et al. 2019; Narayanan et al., SC 2021; Korthikanti et al. 2022).
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

const Register megatron(
    "megatron",
    {.summary = "tensor parallelism in nodes, 1F1B pipeline across, data parallelism over the rest",
     .source = "Shoeybi et al. 2019; Narayanan et al., SC 2021",
     .combines = {.pp = true, .tp = true, .max_zero = 1, .shares = true},
     .pp = 2,
     .tp = 2,
     .order = [](const plan::Plan&, const model::ModelSpec&) { return one_forward_one_backward; }});

}  // namespace
}  // namespace rehearse::methods
