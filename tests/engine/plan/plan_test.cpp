// Completing and refusing plans: stages equal those of a plain dynamic program, impossible sizes
// are refused without allocating anything, and the value that a refusal suggests is accepted.
#include "engine/plan/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/base/numbers/divisors.h"
#include "tests/engine/rig.h"
#include "tests/message_of.h"

namespace rehearse::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// The cuts with the smallest largest part, by trying every beginning; of equally good cuts, the
/// first.
std::vector<std::size_t> plain_cuts(const std::vector<double>& work, std::size_t parts) {
  const std::size_t n = work.size();
  std::vector<double> sum(n + 1, 0);
  for (std::size_t s = 0; s < n; ++s) sum[s + 1] = sum[s] + work[s];
  constexpr double infinite = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(parts + 1, std::vector<double>(n + 1, infinite));
  std::vector<std::vector<std::size_t>> cut(parts + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = 0;
  for (std::size_t p = 1; p <= parts; ++p)
    for (std::size_t end = p; end <= n; ++end)
      for (std::size_t begin = p - 1; begin < end; ++begin)
        if (const double worst = std::max(best[p - 1][begin], sum[end] - sum[begin]);
            worst < best[p][end])
          best[p][end] = worst, cut[p][end] = begin;
  std::vector<std::size_t> out;
  for (std::size_t p = parts, end = n; p > 0; end = cut[p--][end]) out.insert(out.begin(), end);
  return out;
}

TEST(Plan, StagesAreCutAsThePlainDynamicProgramCutsThem) {
  for (const char* name : {"gpt2-124m", "llama-7b", "bert-large", "gpt2-1.5b"}) {
    const model::ModelSpec model = model::load_model(name, 0);
    std::vector<double> work;
    for (Id s = 0; s < model.segments.size(); ++s)
      work.push_back(
          work_of(model, s, program::Pass::forward, 1, 1, program::DType::f32).flops.value);
    for (int pp = 1; pp <= model.layers; ++pp) {
      const Plan plan = complete({.method = "1f1b",
                                  .mesh = {.pp = pp},
                                  .schedule = {.global_batch = pp, .micro_batches = pp}},
                                 model);
      std::vector<std::size_t> ends;
      for (const auto& stage : plan.placement.stages) ends.push_back(std::size_t{stage.back()} + 1);
      ASSERT_EQ(ends, plain_cuts(work, static_cast<std::size_t>(pp))) << name << " pp " << pp;
    }
  }
}

TEST(Plan, DivisorsOfSmallAndLargeNumbers) {
  EXPECT_THAT(divisors(1), ElementsAre(1));
  EXPECT_THAT(divisors(36), ElementsAre(1, 2, 3, 4, 6, 9, 12, 18, 36));
  EXPECT_THAT(divisors(2147483647), ElementsAre(1, 2147483647));
  EXPECT_EQ(nearest_divisor(12, 5), 4);
  EXPECT_EQ(nearest_divisor(50304, 100000), 50304);
}

TEST(Plan, TensorGroupsDivideWhatIsCut) {
  const model::ModelSpec model = model::build_model({.name = "grouped",
                                                     .family = model::Family::llama,
                                                     .layers = 2,
                                                     .hidden = 1536,
                                                     .heads = 48,
                                                     .ffn = 4096,
                                                     .vocab = 512,
                                                     .seq_len = 64,
                                                     .kv_heads = 12});
  EXPECT_EQ(tensor_divisor(model), 4);
  const auto refusal = [&](int tp) {
    return test::message_of([&] {
      complete({.method = "megatron", .mesh = {.tp = tp}, .schedule = {.global_batch = 1}}, model);
    });
  };
  for (const int tp : {1, 2, 4}) EXPECT_EQ(refusal(tp), "no error");
  EXPECT_THAT(refusal(5), AllOf(HasSubstr("48 heads"), HasSubstr("nearest: 4")));
  EXPECT_THAT(refusal(16), AllOf(HasSubstr("12 key-value heads"), HasSubstr("nearest: 4")));
  EXPECT_THAT(refusal(3), AllOf(HasSubstr("4096 columns"), HasSubstr("nearest: 2")));
}

TEST(Plan, ProgramsThatNoMachineHoldsAreRefusedWithWhatIsAccepted) {
  const model::ModelSpec model = test::small_model(4);
  const auto with = [&](int micro_batches) {
    Plan plan = test::plan_of("ddp", 1, 1, 1, micro_batches);
    return test::message_of([&] { complete(plan, model); });
  };
  const std::string said = with(1 << 30);
  EXPECT_THAT(said, HasSubstr("method.micro_batches: 1073741824: "));
  const int most = std::stoi(said.substr(said.rfind("at most ") + 8));
  EXPECT_EQ(with(most), "no error");
  EXPECT_NE(with(most + 1), "no error");
}

TEST(Plan, SharesThatLeave32BitsAreRefused) {
  Plan plan = test::plan_of("ddp", 1, 2, 1, 1);
  plan.schedule.shares = {2147483647, 2147483647};
  plan.schedule.global_batch = -2;  // their sum wraps to -2 in 32 bits
  EXPECT_THAT(test::message_of([&] { complete(plan, test::small_model(4)); }),
              HasSubstr("must sum to"));
}

TEST(Model, SizesBeyondAnyModelAreRefused) {
  const auto refusal = [](model::ModelSpec m) {
    m.name = "huge";
    return test::message_of([&] { model::build_model(m); });
  };
  const model::ModelSpec good{.layers = 2, .hidden = 64, .heads = 4, .vocab = 512, .seq_len = 64};
  model::ModelSpec m = good;
  m.layers = 1'000'000;
  EXPECT_THAT(refusal(m), HasSubstr("layers = 1000000 must be at most 10000"));
  m = good, m.hidden = 1 << 30;
  EXPECT_THAT(refusal(m), HasSubstr("hidden = 1073741824 must be at most"));
  m = good, m.vocab = 2147483647;
  EXPECT_THAT(refusal(m), HasSubstr("vocab = 2147483647 must be at most"));
  m = good, m.seq_len = m.max_positions = 1 << 30;
  EXPECT_THAT(refusal(m), HasSubstr("must be at most 16777216"));
}

}  // namespace
}  // namespace rehearse::plan
