// Tests which plans the planner tries besides the enumerated ones: placed pipelines on unlike
// devices, plans with the optimizer on the host, and ZeRO 2 and 3 in pipelines.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/link/workspace.h"
#include "engine/methods/strategy.h"
#include "engine/planner/memory/needs.h"
#include "engine/planner/planner.h"
#include "engine/planner/search/evaluator.h"
#include "tests/engine/planner/planner_job.h"
#include "tests/message_of.h"

namespace rehearse::planner {
namespace {

/// The path of a platform: two nodes of four RTX 4090 and one of four V100, without NVLink.
std::string mixed_platform() {
  const std::string path = testing::TempDir() + "mixed.toml";
  const auto nodes = [](int count, const std::string& kind, const char* rate) {
    return fmt::format(
        "[[nodes]]\ncount = {}\ndevices = [{}]\nparts = [\"host\", \"nic\"]\nlinks = [\n"
        "{{ from = \"gpu*\", to = \"host\", bandwidth = \"{}\", latency = \"1us\" }},\n"
        "{{ from = \"nic\", to = \"host\", bandwidth = \"{}\", latency = \"0.5us\" }},\n"
        "{{ from = \"nic\", to = \"fabric\", bandwidth = \"100Gb/s\", latency = \"1us\" }}]\n\n",
        count, fmt::join(std::vector<std::string>(4, "\"" + kind + "\""), ", "), rate, rate);
  };
  std::ofstream(path) << "summary = \"mixed\"\n\n" + nodes(2, "RTX 4090", "15.5GB/s") +
                             nodes(1, "V100 SXM2 16GB", "12GB/s");
  return path;
}

// Stages of equal work make a pipeline on unlike devices slow, and its bound excludes it.
TEST(PlannerTries, APipelineOnUnlikeDevicesIsNotExcludedByItsStagesOfEqualWork) {
  const std::string model = testing::TempDir() + "wide.toml", platform = mixed_platform();
  std::ofstream(model) << "family = \"llama\"\nlayers = 12\nhidden = 4096\nheads = 32\n"
                          "kv_heads = 8\nffn = 12288\nvocab = 32000\nseq_len = 2048\n"
                          "tied = false\n";
  const auto seconds = [&](int batch, const std::string& more) {
    return decide(job_of(model, platform,
                         fmt::format("method.precision = \"fp16\"\ntrain.global_batch = {}\n{}",
                                     batch, more)),
                  nullptr, {})
        .seconds;
  };
  for (const int batch : {24, 32, 48}) {
    const double free = seconds(batch, "");
    for (const char* stated : {"method.pp = 3", "method.pp = 6", "method.pp = 3\nmethod.dp = 4",
                               "method.recompute = false", "method.zero = 1"})
      EXPECT_LE(free, seconds(batch, stated) * (1 + plainer_within)) << batch << " " << stated;
  }
}

TEST(PlannerTries, PutsTheOptimizerOnTheHostWhereNothingElseFits) {
  const std::string batch =
      "train.global_batch = 16\ntrain.seq_len = 2048\n"
      "method.precision = \"bf16\"\n";
  const job::Job job = job_of("llama-7b", "workstation-4090", batch);
  const plan::Decision d = decide(job, nullptr, {});
  EXPECT_EQ(d.plan.exchange.offload, plan::Offload::optimizer) << summary_of(d.plan);
  EXPECT_THAT(summary_of(d.plan), testing::HasSubstr("optimizer on the host"));
  EXPECT_THAT(explain(d), testing::ContainsRegex("on the device +does not fit: needs"));
  const link::LinkedProgram linked = link::link(methods::compile(d.plan, job.model), job.model);
  for (const DeviceNeed& need : device_needs(linked, job.cluster, d.plan.placement.rank_to_device))
    EXPECT_TRUE(need.fits());
  EXPECT_FALSE(short_host(linked, job.cluster, d.plan));

  const auto refused = [](const job::Job& of) {
    return test::message_of([&] { decide(of, nullptr, {}); });
  };
  EXPECT_THAT(refused(job_of("llama-7b", "workstation-4090", batch + "method.offload = \"none\"")),
              testing::HasSubstr("leave out method.offload: "));
  // 8 billion parameters: fp32 weights, moments, and copies of 16-bit weights and gradients.
  EXPECT_THAT(refused(job_of("llama3-8b", "workstation-4090",
                             "train.global_batch = 2\ntrain.seq_len = 512\n"
                             "method.precision = \"bf16\"\n")),
              testing::HasSubstr("memory of hosts: that of node 0 has 128 GB, its ranks need"));
}

TEST(PlannerTries, PutsTheOptimizerOnTheHostWhereThatIsFaster) {
  const std::string keys = "train.global_batch = 16\nmethod.precision = \"bf16\"\n";
  const plan::Decision d = decide(job_of("llama-7b", "server-4090", keys), nullptr, {});
  EXPECT_EQ(d.plan.exchange.offload, plan::Offload::optimizer) << summary_of(d.plan);
  // Others fit, too: they recompute.
  const plan::Decision device =
      decide(job_of("llama-7b", "server-4090", keys + "method.offload = \"none\""), nullptr, {});
  EXPECT_TRUE(device.plan.schedule.recompute);
  EXPECT_LT(d.seconds, device.seconds);
  // Where the plan fits, updates on the device are faster.
  const job::Job small = job_of("gpt-tiny", "dgx1", "train.global_batch = 16");
  EXPECT_EQ(decide(small, nullptr, {}).plan.exchange.offload, plan::Offload::none);
}

TEST(PlannerTries, DividesGradientsInPipelinesWhereTheNetworkIsSlow) {
  // The tied table of words crosses the network whole, unless ZeRO-2 divides it.
  const std::string keys =
      "train.global_batch = 64\nmethod.precision = \"bf16\"\n"
      "cluster.links.network.bandwidth = \"1Gb/s\"\n";
  const plan::Decision d = decide(job_of("gpt2-1.5b", "dgx-a100:2", keys), nullptr, {});
  EXPECT_GT(d.plan.mesh.pp, 1);
  EXPECT_EQ(d.plan.exchange.sharding.zero, 2) << summary_of(d.plan);
  const plan::Decision whole =
      decide(job_of("gpt2-1.5b", "dgx-a100:2", keys + "method.zero = 1"), nullptr, {});
  EXPECT_LT(d.seconds, whole.seconds / 2);
}

TEST(PlannerTries, IsNoSlowerWithMoreMemory) {
  double less = std::numeric_limits<double>::infinity();
  for (const char* reserve : {"13.1GB", "12.5GB", "11GB", "9GB", "6GB", "1.5GB"}) {
    const job::Job job = job_of("gemma2-2b", "dgx1",
                                fmt::format("train.global_batch = 16\ntrain.seq_len = 2048\n"
                                            "method.precision = \"fp16\"\n"
                                            "cluster.memory_reserve = \"{}\"",
                                            reserve));
    const plan::Decision d = decide(job, nullptr, {});
    // Stages that were cut to fit may be a little better balanced than those that need not fit.
    EXPECT_LE(d.seconds, less * 1.01) << reserve << " " << summary_of(d.plan);
    less = d.seconds;
  }
}

TEST(PlannerTries, SaysWhatTheSmallestPlanNeeds) {
  // What it needs does not depend on what there is.
  for (const char* reserve : {"13.7GB", "14GB"}) {
    const job::Job job = job_of("gemma2-2b", "dgx1",
                                fmt::format("train.global_batch = 16\ntrain.seq_len = 2048\n"
                                            "method.precision = \"fp16\"\n"
                                            "cluster.memory_reserve = \"{}\"",
                                            reserve));
    EXPECT_THAT(test::message_of([&] { decide(job, nullptr, {}); }),
                testing::HasSubstr("candidates needs 3.6 GB of V100 SXM2 16GB's"));
  }
}

TEST(PlannerTries, KeepsSharesAndChunksThatTheJobStates) {
  const std::string devices = "cluster.devices = [\"node0\", \"node8\"]\ntrain.global_batch = 64\n";
  const plan::Decision equal =
      decide(job_of("bert-large", "paper", devices + "method.shares = \"equal\""), nullptr, {});
  EXPECT_TRUE(equal.plan.schedule.shares.empty()) << summary_of(equal.plan);
  const plan::Decision chunks =
      decide(job_of("gpt2-124m", "dgx1", "train.global_batch = 64\nmethod.virtual_stages = 2"),
             nullptr, {});
  EXPECT_EQ(chunks.plan.schedule.virtual_stages, 2) << summary_of(chunks.plan);
}

TEST(Planner, TriesOtherKindsThanThoseThatSufferFromContention) {
  // Simulations say that plans with one micro-batch take twice as long as their dry runs, and that
  // others take as long. All plans are of one class.
  const job::Job job = job_of("bert-paper-110m", "paper",
                              "method.pp = 1\nmethod.tp = 1\nmethod.zero = 0\n"
                              "train.global_batch = 64\ncluster.world_size = 8");
  PlannerOptions options;
  options.finalists = 2;
  Evaluator evaluator(job.model, job.cluster, nullptr);
  options.rescore = [&](const plan::Plan& plan) {
    return (plan.schedule.micro_batches == 1 ? 2 : 1) * evaluator.seconds(plan);
  };
  ASSERT_EQ(decide(job, nullptr, {}).plan.schedule.micro_batches, 1);
  EXPECT_GT(decide(job, nullptr, options).plan.schedule.micro_batches, 1);
}

}  // namespace
}  // namespace rehearse::planner
