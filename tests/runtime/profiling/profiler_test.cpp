// A profile of this machine has all parts, with plausible times, and can be written and read again.

#include "runtime/profiling/profiler.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "engine/base/errors.h"
#include "tests/runtime/processes.h"

namespace rehearse::runtime {
namespace {

TEST(SoakProfiler, MeasuresEveryPieceWithAllRanksAtOnce) {
  at::set_num_threads(1);
  const model::ModelSpec model = model::load_model("gpt-tiny", 32);
  const auto began = std::chrono::steady_clock::now();
  const std::vector<Outcome> outcomes = run_ranks(2, [&](const Environment& environment) {
    return to_json(measure_profile(model,
                                   {.samples = {1, 4},
                                    .threads = 1,
                                    .segment_time = Seconds(0.1),
                                    .largest = Bytes(1e6),
                                    .collective_time = Seconds(0.01)},
                                   environment));
  });
  const double lasted =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  for (const Outcome& outcome : outcomes) ASSERT_EQ(outcome.status, 0) << outcome.text;
  const costs::Profile profile = costs::parse_profile(outcomes[0].text, "profile");
  EXPECT_EQ(profile.ranks, 2);
  EXPECT_EQ(profile.threads_per_rank, 1);
  const std::string kind = cluster::load_cluster("this-machine:2").kind_of(0).name;
  EXPECT_TRUE(profile.covers(kind));
  EXPECT_FALSE(profile.covers("RTX 4090"));
  std::set<std::tuple<model::SegmentKind, program::Pass, int>> pieces;
  for (const costs::SegmentTime& segment : profile.segments) {
    EXPECT_GT(segment.seconds, 0);
    EXPECT_LT(segment.seconds, lasted / 10);
    pieces.insert({segment.kind, segment.pass, segment.samples});
  }
  // Kinds, passes, numbers of samples; the embedding's backward has no halves.
  EXPECT_EQ(pieces.size(), (4U * 3U + 3U * 2U) * 2U);
  const auto head = [&](int samples) {
    return *profile.segment_seconds(model.name, model::SegmentKind::head, program::Pass::backward,
                                    samples, 32, 1, program::DType::f32, kind);
  };
  EXPECT_GT(head(4), head(1));
  EXPECT_TRUE(profile.update_seconds(plan::Optimizer::adamw, program::DType::f32, 1'000'000, kind));
  for (const program::KernelKind work :
       {program::KernelKind::measure, program::KernelKind::rescale, program::KernelKind::select,
        program::KernelKind::scatter_add, program::KernelKind::cast, program::KernelKind::observe,
        program::KernelKind::quantise, program::KernelKind::dequantise, program::KernelKind::weigh,
        program::KernelKind::drift, program::KernelKind::outer_step, program::KernelKind::mix,
        program::KernelKind::momentum, program::KernelKind::draw})
    EXPECT_GT(profile.kernel_seconds(work, 1 << 20, kind).value_or(0), 0) << static_cast<int>(work);
  for (const program::Move move :
       {program::Move::all_reduce, program::Move::reduce_scatter, program::Move::all_gather,
        program::Move::broadcast, program::Move::reduce, program::Move::all_to_all,
        program::Move::rotate})
    EXPECT_GT(profile.collective_seconds(move, 2, 1 << 18, kind).value_or(0), 0)
        << static_cast<int>(move);
  EXPECT_GT(profile.transfer_seconds(1 << 18, kind).value_or(0), 0);
  EXPECT_GT(profile.cpu_seconds_per_byte, 0);
}

TEST(Profiler, RefusesAModelWithoutBlocks) {
  model::ModelSpec model = model::load_model("bert-tiny", 0);
  model.outputs = 2;
  model = build_model(model);
  EXPECT_THROW(measure_profile(model, {}, {}), InputError);
}

}  // namespace
}  // namespace rehearse::runtime
