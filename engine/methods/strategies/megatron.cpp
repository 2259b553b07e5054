// Megatron-LM (Shoeybi et al. 2019; Narayanan et al., SC 2021; Korthikanti et al. 2022): tensor
// parallelism inside nodes, a 1F1B pipeline across them, data parallelism over the rest. Tensor
// parallelism means column- then row-parallel products and a vocabulary-parallel embedding and
// loss. Sequence parallelism replaces each all-reduce by a reduce-scatter and an all-gather.
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

const Register megatron(
    "megatron",
    {.summary = "tensor parallelism in nodes, 1F1B pipeline across, data parallelism over the rest",
     .source = "Shoeybi et al. 2019; Narayanan et al., SC 2021",
     .combines = {.pp = true, .tp = true, .max_zero = 3, .context = true, .shares = true},
     .pp = 2,
     .tp = 2,
     .order = [](const plan::Plan&, const model::ModelSpec&) { return one_forward_one_backward; }});

}  // namespace
}  // namespace rehearse::methods
