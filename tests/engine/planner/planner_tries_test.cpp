// Tests which plans the planner tries besides the enumerated ones: placed pipelines on unlike
// devices, and plans that save memory where nothing else fits.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/link/workspace.h"
#include "engine/methods/strategy.h"
#include "engine/planner/memory/needs.h"
#include "engine/planner/planner.h"
#include "engine/planner/search/candidates.h"
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

TEST(PlannerTries, SavesMemoryWhereNothingElseFits) {
  const std::string batch =
      "train.global_batch = 16\ntrain.seq_len = 2048\n"
      "method.precision = \"bf16\"\n";
  const job::Job job = job_of("llama-7b", "workstation-4090", batch);
  const plan::Decision d = decide(job, nullptr, {});
  EXPECT_EQ(d.plan.exchange.offload, plan::Offload::optimizer) << summary_of(d.plan);
  EXPECT_THAT(summary_of(d.plan), testing::HasSubstr("optimizer on the host"));
  ASSERT_FALSE(d.warnings.empty());
  EXPECT_THAT(d.warnings.back(), testing::HasSubstr("no plan fits that keeps the optimizer"));
  EXPECT_THAT(explain(d), testing::ContainsRegex("on the device +does not fit: needs"));
  const link::LinkedProgram linked = link::link(methods::compile(d.plan, job.model), job.model);
  for (const DeviceNeed& need : device_needs(linked, job.cluster, d.plan.placement.rank_to_device))
    EXPECT_TRUE(need.fits());
  EXPECT_FALSE(short_host(linked, job.cluster, d.plan));

  const auto refused = [](const job::Job& of, const PlannerOptions& options = {}) {
    return test::message_of([&] { decide(of, nullptr, options); });
  };
  EXPECT_THAT(refused(job, {.save_memory = false}), testing::HasSubstr("memory binds"));
  EXPECT_THAT(refused(job_of("llama-7b", "workstation-4090", batch + "method.offload = \"none\"")),
              testing::HasSubstr("leave out method.offload: "));
  // 8 billion parameters: fp32 weights, moments, and copies of 16-bit weights and gradients.
  EXPECT_THAT(refused(job_of("llama3-8b", "workstation-4090",
                             "train.global_batch = 2\ntrain.seq_len = 512\n"
                             "method.precision = \"bf16\"\n")),
              testing::HasSubstr("memory of hosts: that of node 0 has 128 GB, its ranks need"));
}

TEST(PlannerTries, TriesToSaveMemoryOnlyWhereNothingElseFits) {
  const job::Job job = job_of("gpt-tiny", "dgx1", "train.global_batch = 16");
  const auto count = [&](bool save_memory, auto uses) {
    const auto plans = candidates(job, nullptr, save_memory).plans;
    return std::count_if(plans.begin(), plans.end(), uses);
  };
  const auto on_host = [](const plan::Plan& plan) {
    return plan.exchange.offload == plan::Offload::optimizer;
  };
  const auto divides_in_pipeline = [](const plan::Plan& plan) {
    return plan.mesh.pp > 1 && plan.exchange.sharding.zero > 1;
  };
  EXPECT_EQ(count(false, on_host), 0);
  EXPECT_EQ(count(false, divides_in_pipeline), 0);
  EXPECT_GT(count(true, on_host), 0);
  EXPECT_GT(count(true, divides_in_pipeline), 0);
  EXPECT_TRUE(decide(job, nullptr, {}).warnings.empty());
}

}  // namespace
}  // namespace rehearse::planner
