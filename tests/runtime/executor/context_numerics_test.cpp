// Ranks that divide sequences, in real processes, against single-process autograd of the whole
// sequences: losses, validation loss and weights, for every way of attending and with everything
// that context parallelism combines with.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "engine/base/names.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

using plan::Context;

constexpr double tolerance = 1e-5;

struct Case {
  std::string name = {};
  plan::Plan plan = {};
  std::string model = "gpt-tiny";
  int seq_len = 16;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// Short sequences: every combination. By SGD unless a case says otherwise, so that every weight is
/// compared: Adam makes rounding errors of small gradients large.
std::vector<Case> combinations() {
  std::vector<Case> cases;
  for (const std::string model : {"gpt-tiny", "llama-tiny"})
    for (const Context context : {Context::ring, Context::zigzag, Context::ulysses}) {
      const auto add = [&](const std::string& what, plan::Plan plan) {
        plan.mesh.context = context, plan.mesh.order = "pp,dp,cp,tp";
        plan.optimizer = plan.clip ? plan::Optimizer::adamw : plan::Optimizer::sgd;
        cases.push_back({fmt::format("{} {} {}", name_of(context), what, model), plan, model});
      };
      const bool heads = context == Context::ulysses;
      add("of 2", {.method = "ddp", .mesh = {.dp = 2, .cp = 2}, .schedule = {.micro_batches = 2}});
      if (!heads || model == "gpt-tiny")  // llama-tiny has two key-value heads
        add("of 4", {.method = "ddp", .mesh = {.cp = 4}});
      add("of 2, zero1, clipped", {.method = "zero1", .mesh = {.dp = 2, .cp = 2}, .clip = true});
      add("of 2, zero2, accumulating",
          {.method = "zero2", .mesh = {.cp = 2}, .schedule = {.micro_batches = 2}});
      add("of 2, zero3, recomputing", {.method = "zero3",
                                       .mesh = {.cp = 2},
                                       .schedule = {.micro_batches = 2, .recompute = true}});
      add("of 2, activations on the host",
          {.method = "ddp",
           .mesh = {.cp = 2},
           .schedule = {.micro_batches = 2, .hosted = {.on = true, .ahead = 1}}});
      add("of 2, 1f1b",
          {.method = "1f1b", .mesh = {.pp = 2, .cp = 2}, .schedule = {.micro_batches = 4}});
      if (!heads || model == "gpt-tiny")
        add("of 2, sequence parallel",
            {.method = "megatron",
             .mesh = {.tp = 2, .sequence_parallel = true, .cp = 2},
             .schedule = {.recompute = true, .recompute_unit = plan::RecomputeUnit::attention}});
    }
  return cases;
}

/// Sequences of 2,048 tokens.
std::vector<Case> long_sequences() {
  std::vector<Case> cases;
  for (const std::string model : {"gpt-tiny", "llama-tiny", "bert-tiny"})
    for (const int cp : {2, 4})
      for (const Context context : {Context::ring, Context::zigzag, Context::ulysses}) {
        if (model == "bert-tiny" && context == Context::zigzag) continue;  // refused
        if (model == "llama-tiny" && context == Context::ulysses && cp == 4) continue;
        cases.push_back({fmt::format("{} of {} {} 2k", name_of(context), cp, model),
                         {.method = "ddp",
                          .mesh = {.order = "pp,dp,cp,tp", .cp = cp, .context = context},
                          .schedule = {.global_batch = 1},
                          .optimizer = plan::Optimizer::sgd},
                         model,
                         2048});
      }
  return cases;
}

class DividedSequences : public testing::TestWithParam<Case> {};

TEST_P(DividedSequences, TrainAsOneProcessDoes) {
  const ScratchFolder data, out;
  write_data(data);
  job::Job job = small_job(GetParam().plan, data.path(), out.path(), GetParam().model);
  if (job.plan.clip) job.train.clip = 0.5;
  if (GetParam().seq_len > job.model.seq_len) {
    job.model.seq_len = job.model.max_positions = job.train.seq_len = GetParam().seq_len;
    job.model.groups.clear(), job.model.segments.clear();
    job.model = build_model(job.model);
    job.train.steps = 3, job.train.eval_batches = 1;
  }
  const TrainedRun run = train_in_processes(job);
  if (HasFailure()) return;
  const ReferenceRun reference = train_reference(job);
  ASSERT_EQ(run.losses.size(), reference.losses.size());
  for (std::size_t step = 0; step < run.losses.size(); ++step)
    EXPECT_NEAR(run.losses[step] / reference.losses[step], 1, tolerance) << "step " << step;
  EXPECT_LT(run.losses.back(), run.losses.front()) << "nothing was learnt";
  EXPECT_NEAR(run.validation_loss / reference.validation_loss, 1, tolerance);
  const reference::Weights weights = weights_of(run.checkpoint, job.model);
  EXPECT_NEAR(global_norm(weights) / global_norm(reference.weights), 1, tolerance);
  if (job.plan.optimizer != plan::Optimizer::sgd) return;
  // A softmax does not depend on the bias of keys. Where that is a tensor of its own (BERT), it is
  // nothing but rounding errors.
  const auto without_key_bias = [](reference::Weights all) {
    std::erase_if(all, [](const auto& one) { return one.first.ends_with("key.bias"); });
    return all;
  };
  const auto [difference, name] =
      worst_difference(without_key_bias(weights), without_key_bias(reference.weights));
  EXPECT_LE(difference, tolerance) << name;
}

std::string test_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Combinations, DividedSequences, testing::ValuesIn(combinations()),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Long, DividedSequences, testing::ValuesIn(long_sequences()), test_name);

/// The same elements of the same tokens are dropped, on whichever rank they are.
TEST(DividedSequencesWithDropout, HaveTheLossesOfOneRank) {
  const ScratchFolder data;
  write_data(data);
  for (const std::string model : {"gpt-tiny", "bert-tiny"})
    for (const Context context : {Context::ring, Context::ulysses}) {
      const auto losses = [&](int cp) {
        job::Job job = small_job({.method = "ddp",
                                  .mesh = {.order = "pp,dp,cp,tp", .cp = cp, .context = context},
                                  .optimizer = plan::Optimizer::sgd},
                                 data.path(), "", model);
        job.model.dropout = 0.1;
        job.train.steps = 6;
        return train_in_processes(job).losses;
      };
      const std::vector<double> one = losses(1), two = losses(2);
      if (HasFailure()) return;
      ASSERT_EQ(one.size(), two.size());
      for (std::size_t step = 0; step < one.size(); ++step)
        EXPECT_NEAR(two[step] / one[step], 1, tolerance) << model << " step " << step;
    }
}

/// In bf16, results of blocks are rounded between steps around the ring.
TEST(DividedSequencesInSixteenBits, FollowFullPrecisionRoughly) {
  const ScratchFolder data;
  write_data(data);
  for (const Context context : {Context::ring, Context::zigzag, Context::ulysses}) {
    const auto losses = [&](program::DType precision) {
      return train_in_processes(
                 small_job({.method = "zero2",
                            .mesh = {.order = "pp,dp,cp,tp", .cp = 4, .context = context},
                            .precision = precision,
                            .clip = true},
                           data.path(), ""))
          .losses;
    };
    const std::vector<double> full = losses(program::DType::f32),
                              half = losses(program::DType::bf16);
    if (HasFailure()) return;
    ASSERT_EQ(half.size(), full.size());
    for (std::size_t step = 0; step < 3; ++step) EXPECT_NEAR(half[step] / full[step], 1, 0.02);
    EXPECT_LT(half.back(), 0.9 * half.front());
  }
}

}  // namespace
}  // namespace rehearse::runtime
