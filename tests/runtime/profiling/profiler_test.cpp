// A profile has all parts on every kind of device, with plausible times, and can be written and
// read again.

#include "runtime/profiling/profiler.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "engine/base/errors.h"
#include "tests/message_of.h"
#include "tests/runtime/processes.h"

namespace rehearse::runtime {
namespace {

costs::Profile measured(const std::string& device, const std::string& kind, Seconds each) {
  at::set_num_threads(1);
  const model::ModelSpec model = model::load_model("gpt-tiny", 32);
  const std::vector<Outcome> outcomes = run_ranks(2, [&](const Environment& environment) {
    return to_json(measure_profile(model,
                                   {.samples = {1, 4},
                                    .device = device,
                                    .kind = kind,
                                    .threads = 1,
                                    .segment_time = each,
                                    .largest = Bytes(1e6),
                                    .kernel_time = each,
                                    .collective_time = each},
                                   environment));
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.text;
  return costs::parse_profile(outcomes[0].text, "profile");
}

/// Seconds of a pass of the head at so many samples.
double head(const costs::Profile& profile, int samples) {
  for (const costs::SegmentTime& one : profile.segments)
    if (one.kind == model::SegmentKind::head && one.pass == program::Pass::backward &&
        one.samples == samples)
      return one.seconds;
  return 0;
}

class Profiler : public testing::TestWithParam<std::string> {};

TEST_P(Profiler, MeasuresEveryPieceWithAllRanksAtOnce) {
  const bool gpu = GetParam() == "emulated";
  const costs::Profile profile = measured(GetParam(), gpu ? "RTX 4090" : "", Seconds(0.01));
  EXPECT_EQ(profile.ranks, 2);
  EXPECT_EQ(profile.threads_per_rank, 1);
  const std::string kind =
      gpu ? "RTX 4090" : cluster::load_cluster("this-machine:2").kind_of(0).name;
  EXPECT_TRUE(profile.covers(kind));
  EXPECT_EQ(profile.covers("RTX 4090"), gpu);
  std::set<std::tuple<model::SegmentKind, program::Pass, int>> pieces;
  for (const costs::SegmentTime& segment : profile.segments) {
    EXPECT_GT(segment.seconds, 0);
    pieces.insert({segment.kind, segment.pass, segment.samples});
  }
  // Kinds, passes, numbers of samples; the embedding's backward has no halves.
  EXPECT_EQ(pieces.size(), (4U * 3U + 3U * 2U) * 2U);
  EXPECT_GT(head(profile, 1), 0);
  EXPECT_TRUE(profile.update_seconds(plan::Optimizer::adamw, program::DType::f32, 1'000'000, kind));
  for (const program::KernelKind work :
       {program::KernelKind::measure, program::KernelKind::rescale, program::KernelKind::select,
        program::KernelKind::scatter_add, program::KernelKind::cast, program::KernelKind::observe,
        program::KernelKind::quantise, program::KernelKind::dequantise, program::KernelKind::weigh,
        program::KernelKind::drift, program::KernelKind::outer_step, program::KernelKind::mix,
        program::KernelKind::momentum, program::KernelKind::draw, program::KernelKind::mask,
        program::KernelKind::unmask})
    EXPECT_GT(profile.kernel_seconds(work, 1 << 20, kind).value_or(0), 0) << static_cast<int>(work);
  for (const program::Move move :
       {program::Move::all_reduce, program::Move::reduce_scatter, program::Move::all_gather,
        program::Move::broadcast, program::Move::reduce, program::Move::all_to_all,
        program::Move::rotate})
    EXPECT_GT(profile.collective_seconds(move, 2, 1 << 18, kind).value_or(0), 0)
        << static_cast<int>(move);
  EXPECT_GT(profile.transfer_seconds(1 << 18, kind).value_or(0), 0);
  EXPECT_EQ(profile.pairs.size(), gpu ? 0 : 2);
  EXPECT_EQ(profile.cpu_seconds_per_byte > 0, !gpu);  // an accelerator moves the bytes itself
}
INSTANTIATE_TEST_SUITE_P(On, Profiler, testing::Values("cpu", "queues", "emulated"),
                         [](const auto& info) { return info.param; });

TEST(SoakProfiler, TimesGrowWithTheWorkAndAreShorterThanAll) {
  const auto began = std::chrono::steady_clock::now();
  const costs::Profile profile = measured("cpu", "", Seconds(0.1));
  const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - began;
  EXPECT_GT(head(profile, 4), head(profile, 1));
  for (const costs::SegmentTime& segment : profile.segments)
    EXPECT_LT(segment.seconds, lasted.count() / 10);
}

TEST(ProfilerRefuses, AModelWithoutBlocks) {
  model::ModelSpec model = model::load_model("bert-tiny", 0);
  model.outputs = 2;
  model = build_model(model);
  EXPECT_THROW(measure_profile(model, {}, {}), InputError);
}

TEST(ProfilerRefuses, AGpuOfNoKnownKind) {
  const model::ModelSpec model = model::load_model("gpt-tiny", 32);
  const auto said = [&](const ProfileSettings& settings) {
    return test::message_of<InputError>([&] { measure_profile(model, settings, {}); });
  };
  EXPECT_THAT(said({.device = "emulated"}), testing::HasSubstr("--kind or --ranks-on"));
  EXPECT_THAT(said({.device = "emulated"}), testing::HasSubstr("RTX 4090"));
  EXPECT_THAT(said({.kind = "RTX 4080"}), testing::HasSubstr("did you mean \"RTX 4090\"?"));
  EXPECT_THAT(said({.device = "tpu"}), testing::HasSubstr("no device: auto, cpu or cuda"));
}

}  // namespace
}  // namespace rehearse::runtime
