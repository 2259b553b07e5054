// State and buffers of a rank equal the papers' formulas: mixed-precision Adam's 16 bytes per
// parameter and what each ZeRO level divides by the number of ranks (Rajbhandari et al., SC 2020,
// section 5.1 and figure 1), and PipeDream-2BW's second copy of the weights (Narayanan et al., ICML
// 2021, section 3.3).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/link/workspace.h"
#include "engine/methods/strategy.h"
#include "tests/methods.h"

namespace rehearse::methods {
namespace {

model::ModelSpec untied(int layers) {
  return model::build_model({.name = "untied",
                             .layers = layers,
                             .hidden = 48,
                             .heads = 12,
                             .ffn = 192,
                             .vocab = 96,
                             .seq_len = 12,
                             .tied = false});
}

link::RoleMemory memory_of(plan::Plan plan, const model::ModelSpec& model, std::size_t role = 0) {
  plan.schedule.global_batch = plan.mesh.dp * plan.schedule.micro_batches;
  plan.exchange.bucket = Bytes(60000);
  return link::link(compile(plan, model)).memory[role];
}

/// What the loss holds of the logits: a vocabulary that outweighs all else, without an optimizer's
/// state on the device.
TEST(LossMemory, IsWhatItsFormHoldsAtATime) {
  constexpr std::int64_t vocab = 96'000, tokens = 12;
  const auto peak = [&](software::CrossEntropy form, software::Logits logits, int tp) {
    model::ModelSpec model = untied(1);
    model.vocab = vocab, model.padded_vocab = 0;
    model.software.cross_entropy = form, model.software.logits = logits;
    model = model::build_model(model);
    const plan::Plan plan{.method = tp > 1 ? "megatron" : "ddp",
                          .mesh = {.tp = tp},
                          .schedule = {.global_batch = 64},
                          .exchange = {.bucket = Bytes(1e12)},
                          .precision = program::DType::bf16};
    return link::link(compile(plan, model), model).memory[0].total();
  };
  using software::CrossEntropy;
  using software::Logits;
  const auto more = [&](CrossEntropy form, Logits logits, int tp) {
    return double(peak(form, logits, tp) - peak(CrossEntropy::fused, Logits::divided, tp)) /
           double(64 * tokens * vocab);
  };
  // Bytes for each logit, beyond the two that the fused loss keeps.
  EXPECT_NEAR(more(CrossEntropy::library, Logits::divided, 1), 12 - 2, 0.01);
  EXPECT_NEAR(more(CrossEntropy::unconverted, Logits::divided, 1), 6 - 2, 0.01);
  EXPECT_NEAR(more(CrossEntropy::separate, Logits::divided, 1), 10 - 2, 0.01);
  EXPECT_NEAR(more(CrossEntropy::library, Logits::divided, 2), (12 - 2) / 2.0, 0.01);
  EXPECT_NEAR(more(CrossEntropy::unconverted, Logits::gathered, 1), 6 - 2, 0.01);
  // The gathered logits themselves stay until backward.
  EXPECT_NEAR(more(CrossEntropy::unconverted, Logits::gathered, 2), 2 + 6 - 2 / 2.0, 0.01);
}

TEST(StateMemory, OfEveryZeroLevelIsThePapers) {
  const model::ModelSpec model = untied(4);
  const auto parameters = static_cast<double>(parameters_of(model));
  for (const int n : {1, 2, 4, 8})
    for (const program::DType precision : {program::DType::f32, program::DType::f16}) {
      const auto width = static_cast<double>(size_of(precision));
      // K, bytes per parameter: 8 for two moments, 12 with the f32 master of 16-bit weights.
      const double k = precision == program::DType::f32 ? 8 : 12;
      for (int level = 0; level <= 3; ++level) {
        if (n == 1 && level > 0) continue;
        const link::RoleMemory memory = memory_of({.method = "ddp",
                                                   .mesh = {.dp = n},
                                                   .exchange = {.sharding = {.zero = level}},
                                                   .precision = precision},
                                                  model);
        const double weights = width * parameters / (level == 3 ? n : 1);
        const double optimizer = k * parameters / (level >= 1 ? n : 1);
        const double gradients = width * parameters / (level >= 2 ? n : 1);
        // The tolerance is for padding, which makes the shards of a bucket equal.
        EXPECT_NEAR(static_cast<double>(memory.state) / (weights + optimizer), 1, 0.003)
            << "ZeRO-" << level << " on " << n;
        EXPECT_NEAR(static_cast<double>(memory.buffer) / gradients, 1, 0.003)
            << "ZeRO-" << level << " on " << n;
      }
    }
}

// Bytes of weights and optimizer for each parameter, without an fp32 copy of bf16 weights and with
// moments in bf16.
TEST(StateMemory, OfOptimizersInSixteenBits) {
  const model::ModelSpec model = untied(4);
  const auto parameters = static_cast<double>(parameters_of(model));
  const auto each = [&](plan::Plan plan) {
    plan.method = "ddp";
    EXPECT_EQ(plan::optimizer_bytes(plan) + static_cast<double>(size_of(plan.precision)),
              std::round(static_cast<double>(memory_of(plan, model).state) / parameters));
    return static_cast<double>(memory_of(plan, model).state) / parameters;
  };
  const plan::Plan brain{.precision = program::DType::bf16};
  plan::Plan without = brain, moments = brain, neither = brain, single;
  without.master_weights = neither.master_weights = false;
  moments.bf16_moments = neither.bf16_moments = single.bf16_moments = true;
  EXPECT_NEAR(each(brain), 14, 0.05);
  EXPECT_NEAR(each(without), 10, 0.05);
  EXPECT_NEAR(each(moments), 10, 0.05);
  EXPECT_NEAR(each(neither), 6, 0.05);
  EXPECT_NEAR(each(single), 8, 0.05);
  neither.optimizer = plan::Optimizer::sgd;
  EXPECT_NEAR(each(neither), 4, 0.05);
}

// Nothing but the tokens of a batch is held for each of its micro-batches. GPipe is left out: its
// memory of activations is that of all micro-batches (Huang et al., NeurIPS 2019, section 2.3).
TEST(StateMemory, DoesNotGrowWithMicroBatches) {
  const model::ModelSpec model = untied(8);
  for (const std::string& method : test::all_methods()) {
    const Strategy& strategy = strategy_named(method);
    if (method == "gpipe") continue;
    const auto peak = [&](int micro_batches) {
      plan::Plan plan{.method = method,
                      .mesh = {.pp = std::min(strategy.pp, 2), .tp = std::min(strategy.tp, 2)},
                      .schedule = {.micro_batches = micro_batches}};
      if (plan.mesh.pp * plan.mesh.tp == 1) plan.mesh.dp = 4;
      return static_cast<double>(memory_of(plan, model).total());
    };
    EXPECT_LT(peak(32) / peak(8), 1.05) << method;
  }
}

// In a pipeline, each stage has the same for its own parameters, and gathered weights and whole
// gradients come and go as without a pipeline, however many micro-batches there are.
TEST(StateMemory, OfShardedPipelinesIsThatOfTheirStages) {
  const model::ModelSpec model = untied(8);
  constexpr int n = 4;
  for (const char* method : {"1f1b", "interleaved", "megatron"})
    for (int level = 1; level <= 3; ++level)
      for (const bool once : {false, true}) {
        if (once && level == 1) continue;
        SCOPED_TRACE(testing::Message() << method << " zero " << level << " once " << once);
        plan::Plan plan{
            .method = method,
            .mesh = {.pp = 2, .dp = n},
            .schedule = {.micro_batches = 4},
            .exchange = {.sharding = {.zero = level, .keep_gathered = once, .reduce_once = once}}};
        plan.schedule.global_batch = n * plan.schedule.micro_batches;
        const plan::Plan ready = prepare(plan, model);
        std::int64_t most = 0;  // parameters of a stage
        for (std::size_t stage = 0; stage < 2; ++stage) {
          std::int64_t parameters = 0;
          for (std::size_t c = stage; c < ready.placement.stages.size(); c += 2)
            for (const Id s : ready.placement.stages[c])
              for (const Id g : model.segments[s].groups)
                parameters += elements_of(model.groups[g], 1);
          most = std::max(most, parameters);
          const link::RoleMemory memory = memory_of(plan, model, stage);
          const auto each = [&](std::int64_t bytes) {
            return static_cast<double>(bytes) / static_cast<double>(parameters);
          };
          EXPECT_NEAR(each(memory.state), 4.0 / (level == 3 ? n : 1) + 8.0 / n, 0.03);
          EXPECT_NEAR(each(memory.buffer), 4.0 / (level >= 2 && !once ? n : 1), 0.03);
        }
        const auto value = [&](int micro_batches) {
          plan.schedule.micro_batches = micro_batches;
          return static_cast<double>(memory_of(plan, model, 0).value);
        };
        EXPECT_LT(value(32) / value(8), 1.05);
        if (level < 3) continue;
        // Weights that are kept are whole beside the activations; others are a few segments.
        plan::Plan other = plan;
        other.exchange.sharding.keep_gathered = !plan.exchange.sharding.keep_gathered;
        const auto kept = memory_of(once ? plan : other, model, 0).value,
                   resharded = memory_of(once ? other : plan, model, 0).value;
        EXPECT_GT(kept - resharded, most);  // a quarter of the 4 bytes a parameter
        EXPECT_LT(kept - resharded, 4 * most);
      }
}

// What memory is for: the parts sum up to it. Weights, gradients and moments of ddp are the
// formula's.
TEST(StateMemory, PartsAreAllOfIt) {
  const model::ModelSpec model = untied(4);
  for (const std::string& method : test::all_methods()) {
    const Strategy& strategy = strategy_named(method);
    plan::Plan plan{.method = method,
                    .mesh = {.pp = std::min(strategy.pp, 2), .tp = std::min(strategy.tp, 2)},
                    .schedule = {.micro_batches = 4}};
    if (plan.mesh.pp * plan.mesh.tp == 1) plan.mesh.dp = 4;
    plan.schedule.global_batch = plan.mesh.dp * plan.schedule.micro_batches;
    const link::LinkedProgram linked = link::link(compile(plan, model), model);
    for (const link::RoleMemory& memory : linked.memory) {
      EXPECT_EQ(std::accumulate(memory.parts.begin(), memory.parts.end(), std::int64_t{0}),
                memory.total())
          << method;
      EXPECT_GE(std::ranges::min(memory.parts), 0) << method;
    }
  }
  plan::Plan plan{.method = "ddp", .mesh = {.dp = 4}};
  link::Parts parts = memory_of(plan, model).parts;
  const std::int64_t parameters = parameters_of(model);
  EXPECT_EQ(at(parts, link::Part::weights), 4 * parameters);
  EXPECT_EQ(at(parts, link::Part::gradients), 4 * parameters);
  EXPECT_EQ(at(parts, link::Part::moments), 8 * parameters);
  EXPECT_EQ(at(parts, link::Part::communication), 0);
  EXPECT_LT(at(parts, link::Part::unshared), at(parts, link::Part::activations) / 10);
  plan.method = "topk-sync";
  parts = memory_of(plan, model).parts;
  EXPECT_GT(at(parts, link::Part::communication), 4 * parameters);  // packets and error feedback
}

// Of their gradients, ZeRO 2 and 3 hold two buckets and the one that backward writes: with more
// layers, what they hold for a while grows as that of ddp, whose gradients are no such values.
TEST(StateMemory, OfWholeGradientsIsThatOfAFewBuckets) {
  const model::ModelSpec few = untied(4), many = untied(12);
  const auto growth = [&](const std::string& method) {
    const plan::Plan plan{.method = method, .mesh = {.dp = 4}};
    return memory_of(plan, many).value - memory_of(plan, few).value;
  };
  const std::int64_t gradients = 4 * (parameters_of(many) - parameters_of(few));
  for (const std::string method : {"zero2", "zero3"})
    EXPECT_LT(growth(method) - growth("ddp"), gradients / 20) << method;
}

// With each segment that may be gathered ahead, ZeRO 3 holds the weights of one more; with each
// bucket that may wait for its reduce-scatter, the gradients of one more. A layer has two segments,
// an attention of a third of its parameters and an MLP of two thirds.
TEST(StateMemory, GrowsWithWhatMayRunAhead) {
  const model::ModelSpec model = untied(12);
  const auto held = [&](int prefetch, int pending_buckets) {
    const plan::Plan plan{
        .method = "zero3",
        .mesh = {.dp = 4},
        .schedule = {.micro_batches = 2},
        .exchange = {.sharding = {.prefetch = prefetch, .pending_buckets = pending_buckets}}};
    return static_cast<double>(memory_of(plan, model).value);
  };
  const double layer = 4.0 * static_cast<double>(parameters_of(model) - parameters_of(untied(11)));
  const double plain = held(1, 2);
  EXPECT_LT(held(0, 2), plain);
  EXPECT_NEAR((held(11, 2) - held(7, 2)) / layer, 2, 0.1);
  EXPECT_NEAR((held(1, 11) - held(1, 7)) / layer, 2, 0.1);
  EXPECT_LT(held(1, 1), plain);
}

TEST(StateMemory, OfTwoVersionsHasEveryWeightTwice) {
  const model::ModelSpec model = untied(8);
  std::int64_t twice = 0;
  for (const std::size_t stage : {0, 1}) {
    const plan::Plan plan{.mesh = {.pp = 2}, .schedule = {.micro_batches = 4}};
    plan::Plan once = plan, two = plan;
    once.method = "1f1b", two.method = "pipedream-2bw";
    const link::RoleMemory flushed = memory_of(once, model, stage),
                           kept = memory_of(two, model, stage);
    twice += kept.state - flushed.state;
    // With 1F1B a rank has one copy of its weights and two moments, of four bytes each.
    EXPECT_EQ(kept.state - flushed.state, flushed.state / 3);
    EXPECT_EQ(kept.buffer, flushed.buffer);
  }
  EXPECT_EQ(twice, parameters_of(model) * 4);
}

}  // namespace
}  // namespace rehearse::methods
