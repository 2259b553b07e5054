// ZeRO (Rajbhandari et al., SC 2020): data parallelism that shards optimizer state (level 1), also
// gradients (2), also weights (3) over the ranks. lowering/sharded.cpp does the sharding. Other
// methods that allow it use it with `zero = N`.
//
// ZeRO-Offload (Ren et al., USENIX ATC 2021) is level 2 with the optimizer on the host: with the
// key `offload` the other methods do the same. Each step, a rank sends its shard of the gradients
// over PCIe and gets its shard of the new weights back. The paper's delayed update, which hides the
// host's work behind the next step, is not in DeepSpeed's code and not here.
//
// Hybrid sharding (Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2.2) is level 3 inside groups of
// ranks, which have equal copies. Without the key `shard_group`, the groups are as large as nodes
// allow, so that weights are gathered inside nodes only.
#include <fmt/format.h>

#include "engine/methods/lowering/roles.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

/// Sets the ZeRO level that the method's name says.
void imply_level(plan::Plan& plan, int level) {
  if (plan.exchange.sharding.zero != 0 && plan.exchange.sharding.zero != level)
    refuse("zero", std::to_string(plan.exchange.sharding.zero),
           fmt::format("method \"{}\" is level {}; leave the key out or use method \"ddp\"",
                       plan.method, level));
  plan.exchange.sharding.zero = level;
}

template <int Level>
Strategy zero(const char* what) {
  return {.summary = what,
          .source = "Rajbhandari et al., SC 2020",
          .combines = {.tp = true, .max_zero = 3, .context = true, .shares = true},
          .defaults = [](plan::Plan& plan) { imply_level(plan, Level); },
          .baseline = Level == 2,
          .at_zero = [](int level) { return fmt::format("zero{}", level); },
          .with_model_parallelism = "megatron"};
}

const Register zero1("zero1", zero<1>("data parallelism, optimizer state sharded"));
const Register zero2("zero2", zero<2>("data parallelism, optimizer state and gradients sharded"));
const Register zero3("zero3",
                     zero<3>("data parallelism, everything sharded, weights gathered for use"));
std::string without_smaller_groups(const plan::Plan& plan) {
  const int dp = plan.mesh.dp, group = plan.exchange.group();
  if (dp == 1 || (group > 1 && group < dp)) return "";
  return fmt::format("hsdp divides the states over all {} replicas, as zero3 does: {}", dp,
                     group == dp
                         ? "they are one group (method.shard_group)"
                         : "no two of them share a node; method.shard_group states smaller groups");
}

const Register hsdp("hsdp", {.summary = "hybrid sharding: ZeRO 3 inside nodes, copies across nodes",
                             .source = "Zhao et al., VLDB 2023, section 3.2.2",
                             .combines = {.tp = true, .max_zero = 3, .shares = true},
                             .defaults =
                                 [](plan::Plan& plan) {
                                   imply_level(plan, 3);
                                   if (plan.exchange.sharding.shard_group == 0)
                                     plan.exchange.sharding.shard_group = group_in_nodes(plan);
                                 },
                             .with_model_parallelism = "megatron",
                             .remark = without_smaller_groups});
const Register offload("zero-offload",
                       {.summary = "ZeRO 2 with optimizer state and update on the host",
                        .source = "Ren et al., USENIX ATC 2021",
                        .combines = {.tp = true, .max_zero = 3, .shares = true},
                        .defaults =
                            [](plan::Plan& plan) {
                              imply_level(plan, 2);
                              plan.exchange.offload = plan::Offload::optimizer;
                            },
                        .with_model_parallelism = "megatron"});

}  // namespace
}  // namespace rehearse::methods
