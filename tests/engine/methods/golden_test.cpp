// Programs of small jobs equal their golden files, line by line. To accept a change:
// REHEARSE_ACCEPT=1.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "engine/base/files/data_dir.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

struct Golden {
  const char* name;
  plan::Plan plan;
};

class Programs : public testing::TestWithParam<Golden> {};

TEST_P(Programs, AreAsWrittenDown) {
  model::ModelSpec model{.name = "two-layers",
                         .layers = 2,
                         .hidden = 8,
                         .heads = 2,
                         .ffn = 16,
                         .vocab = 32,
                         .seq_len = 4};
  model = build_model(model);
  const std::string text = to_text(compile(GetParam().plan, model));
  const std::string path = (data_dir() / "tests/golden" / GetParam().name).string() + ".program";
  if (std::getenv("REHEARSE_ACCEPT")) std::ofstream(path) << text;
  std::ifstream in(path);
  std::stringstream expected;
  expected << in.rdbuf();
  EXPECT_EQ(text, expected.str()) << path;
}

INSTANTIATE_TEST_SUITE_P(
    All, Programs,
    testing::Values(
        Golden{"ddp",
               {.method = "ddp",
                .mesh = {.dp = 2},
                .schedule = {.global_batch = 2},
                .exchange = {.bucket = Bytes(1500)}}},
        Golden{"zero1-saving",
               {.method = "zero1",
                .mesh = {.dp = 2},
                .schedule = {.global_batch = 2},
                .exchange = {.fp32_gradients = true},
                .precision = program::DType::bf16,
                .checkpoints = {.every = 10, .to = program::Medium::local_disk}}},
        Golden{"horovod",
               {.method = "horovod",
                .mesh = {.dp = 3},
                .schedule = {.global_batch = 3},
                .exchange = {.fusion = {.fused_after = {3}}}}},
        Golden{"byteps",
               {.method = "byteps",
                .mesh = {.dp = 4, .servers = 2},
                .schedule = {.global_batch = 4},
                .exchange = {.bucket = Bytes(2500), .machines = {.credit = 2, .local_ranks = 2}}}},
        Golden{"byteps-async",
               {.method = "byteps-async",
                .mesh = {.dp = 2, .servers = 1},
                .schedule = {.global_batch = 2},
                .precision = program::DType::bf16}},
        Golden{"multi-worker-mirrored",
               {.method = "multi-worker-mirrored",
                .mesh = {.dp = 2},
                .schedule = {.global_batch = 2}}},
        Golden{"zero3", {.method = "zero3", .mesh = {.dp = 2}, .schedule = {.global_batch = 2}}},
        Golden{"hsdp",
               {.method = "hsdp",
                .mesh = {.dp = 4},
                .schedule = {.global_batch = 4},
                .exchange = {.sharding = {.shard_group = 2}},
                .clip = true}},
        Golden{"zigzag-cp2",
               {.method = "ddp",
                .mesh = {.order = "pp,dp,cp,tp", .cp = 2, .context = plan::Context::zigzag},
                .schedule = {.global_batch = 1}}},
        Golden{"ulysses-cp2",
               {.method = "ddp",
                .mesh = {.order = "pp,dp,cp,tp", .cp = 2, .context = plan::Context::ulysses},
                .schedule = {.global_batch = 1}}},
        Golden{"zero3-resharding",
               {.method = "zero3",
                .mesh = {.dp = 4},
                .schedule = {.global_batch = 4},
                .exchange = {.sharding = {.reshard_group = 2}}}},
        Golden{"megatron-pp2-tp2",
               {.method = "megatron",
                .mesh = {.pp = 2, .tp = 2},
                .schedule = {.global_batch = 2, .micro_batches = 2},
                .clip = true}},
        Golden{"interleaved-zero3-pp2",
               {.method = "interleaved",
                .mesh = {.pp = 2, .dp = 2},
                .schedule = {.global_batch = 4, .micro_batches = 2},
                .exchange = {.sharding = {.zero = 3}},
                .placement = {.partition = plan::Partition::layers, .stage_layers = {0, 1, 0}}}},
        Golden{"1f1b-zero2-pp2-tp2",
               {.method = "1f1b",
                .mesh = {.pp = 2, .dp = 2, .tp = 2},
                .schedule = {.global_batch = 4, .micro_batches = 2},
                .exchange = {.sharding = {.zero = 2}},
                .clip = true}},
        Golden{"1f1b-zero3-reducing-once",
               {.method = "1f1b",
                .mesh = {.pp = 2, .dp = 2},
                .schedule = {.global_batch = 4, .micro_batches = 2},
                .exchange = {.sharding = {.zero = 3, .keep_gathered = true, .reduce_once = true}}}},
        Golden{"zb-h1",
               {.method = "zb-h1",
                .mesh = {.pp = 2},
                .schedule = {.global_batch = 2, .micro_batches = 2}}},
        Golden{"pipedream",
               {.method = "pipedream",
                .mesh = {.pp = 2},
                .schedule = {.global_batch = 1, .micro_batches = 1}}},
        Golden{"pipedream-2bw",
               {.method = "pipedream-2bw",
                .mesh = {.pp = 2},
                .schedule = {.global_batch = 2, .micro_batches = 2}}},
        Golden{"topk-sync",
               {.method = "topk-sync", .mesh = {.dp = 2}, .schedule = {.global_batch = 2}}},
        Golden{"int8-sync",
               {.method = "int8-sync", .mesh = {.dp = 2}, .schedule = {.global_batch = 2}}},
        Golden{"qsgd-bf16-tp2",
               {.method = "qsgd",
                .mesh = {.dp = 3, .tp = 2},
                .schedule = {.global_batch = 3},
                .exchange = {.quantised = {.bits = 4, .error_feedback = true}},
                .precision = program::DType::bf16,
                .clip = true}},
        Golden{"powersgd",
               {.method = "powersgd",
                .mesh = {.dp = 2},
                .schedule = {.global_batch = 2},
                .exchange = {.bucket = Bytes(1500), .low_rank = {.rank = 2, .start = 10}}}},
        Golden{"powersgd-drawn-bf16-tp2",
               {.method = "powersgd",
                .mesh = {.dp = 2, .tp = 2},
                .schedule = {.global_batch = 2},
                .exchange = {.quantised = {.error_feedback = false},
                             .low_rank = {.warm_start = false, .start = 0}},
                .precision = program::DType::bf16,
                .clip = true}},
        Golden{"onebit-adam",
               {.method = "onebit-adam",
                .mesh = {.dp = 2},
                .schedule = {.global_batch = 2},
                .exchange = {.quantised = {.freeze = 10}}}},
        Golden{
            "adaptive-two-level",
            {.method = "adaptive",
             .mesh = {.dp = 3},
             .schedule = {.global_batch = 3},
             .exchange =
                 {.sharding = {.zero = 1},
                  .sparse = {.layers = {{0.1, plan::Reduction::sparse, program::Coding::bitmap},
                                        {0.2, plan::Reduction::two_level, program::Coding::delta16},
                                        {},
                                        {0.3, plan::Reduction::two_level},
                                        {},
                                        {0.1, plan::Reduction::sparse}}}},
             .placement = {.node_of = {0, 0, 1}},
             .precision = program::DType::f16}},
        Golden{"local-sgd",
               {.method = "local-sgd",
                .mesh = {.dp = 2},
                .schedule = {.global_batch = 2},
                .exchange = {.bucket = Bytes(1500)}}},
        Golden{"diloco-bf16",
               {.method = "diloco",
                .mesh = {.dp = 2},
                .schedule = {.global_batch = 2},
                .exchange = {.averaging = {.local_steps = 10}},
                .precision = program::DType::bf16}},
        Golden{"fedavg-bf16",
               {.method = "fedavg",
                .mesh = {.dp = 2, .servers = 1},
                .schedule = {.global_batch = 4, .shares = {1, 3}},
                .precision = program::DType::bf16}},
        Golden{"fedavg-deadline",
               {.method = "fedavg",
                .mesh = {.dp = 2, .servers = 1},
                .schedule = {.global_batch = 4, .shares = {1, 3}},
                .exchange = {.averaging = {.local_steps = 3, .deadline = Seconds(0.5)}}}},
        Golden{"d-psgd",
               {.method = "d-psgd",
                .mesh = {.dp = 5},
                .schedule = {.global_batch = 5},
                .exchange = {.averaging = {.graph = plan::Graph::exponential}}}},
        Golden{"ps-async",
               {.method = "ps-async",
                .mesh = {.dp = 2, .servers = 1},
                .schedule = {.global_batch = 2}}}),
    [](const auto& info) {
      std::string name = info.param.name;
      for (char& c : name)
        if (c == '-') c = '_';
      return name;
    });

}  // namespace
}  // namespace rehearse::methods
