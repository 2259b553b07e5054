// Advice to leave out a kind of device: the plan without it is faster, or as fast and cheaper. The
// seconds of plans are given, so that both cases are exact.
#include "study/planning/fewer_devices.h"

#include <gtest/gtest.h>

#include <functional>

#include "study/load.h"

namespace rehearse::study {
namespace {

constexpr const char* work = R"(
model.name = "gpt-tiny"
cluster.name = "paper"
method = { name = "ddp", pp = 1, tp = 1 }
train.global_batch = 96
)";
const std::string prices = R"(cluster.prices=["RTX 4090: 0.5 USD/h", "V100 PCIe 32GB: 1 USD/h"])";

/// The advice where a plan on so many devices takes these seconds a step.
std::string advice(const std::vector<std::string>& set,
                   const std::function<double(std::size_t devices)>& seconds) {
  const job::Job job = load({.file = "job", .text = work, .set = set});
  const planner::PlannerOptions options{
      .budget = 20, .finalists = 2, .rescore = [&](const plan::Plan& plan) {
        return seconds(plan.placement.rank_to_device.size());
      }};
  return better_with_fewer(job, planner::decide(job, nullptr, options), nullptr, options);
}

TEST(FewerDevices, AsFastAndCheaper) {
  const auto equal = [](std::size_t) { return 1.0; };
  EXPECT_EQ(
      advice({prices}, equal),
      "a plan without the 24 RTX 4090 is as fast, for 8.00 USD in place of 20.00 USD an hour: "
      "--set 'cluster.devices=[\"V100 PCIe 32GB\"]'");
  // Nothing is cheaper where nothing has a price.
  EXPECT_EQ(advice({R"(cluster.prices=[])"}, equal), "");
  EXPECT_EQ(advice({prices, "cluster.world_size=32"}, equal), "");
}

TEST(FewerDevices, FasterCountsMoreThanCheaper) {
  const auto seconds = [](std::size_t devices) { return devices == 24 ? 0.8 : 1.0; };
  EXPECT_EQ(advice({prices}, seconds),
            "a plan without the 8 V100 PCIe 32GB is 20.0% faster, 800 ms a step: "
            "--set 'cluster.devices=[\"RTX 4090\"]'");
}

TEST(FewerDevices, SlowerIsNoAdvice) {
  const auto seconds = [](std::size_t devices) { return devices == 32 ? 1.0 : 1.01; };
  EXPECT_EQ(advice({prices}, seconds), "");
}

}  // namespace
}  // namespace rehearse::study
