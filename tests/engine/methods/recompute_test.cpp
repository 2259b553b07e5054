// Recomputation by segments and by layers: which inputs a rank keeps, and what it runs again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "tests/engine/rig.h"

namespace rehearse::methods {
namespace {

using plan::RecomputeUnit;
using program::Pass;

plan::Plan plan_of(RecomputeUnit unit, int pp, int tp, int micro_batches) {
  plan::Plan plan = test::plan_of("gpipe", pp, 1, tp, micro_batches);
  plan.schedule.recompute = true, plan.schedule.recompute_unit = unit;
  plan.placement.partition = plan::Partition::layers;
  return plan;
}

/// Bytes that each further micro-batch in flight takes on a stage.
std::int64_t bytes_per_micro_batch(RecomputeUnit unit, int layers, int stage, int tp,
                                   bool sequence_parallel) {
  const auto total = [&](int micro_batches) {
    plan::Plan plan = plan_of(unit, 2, tp, micro_batches);
    plan.mesh.sequence_parallel = sequence_parallel;
    const link::LinkedProgram linked = link::link(compile(plan, test::small_model(layers)));
    return linked.memory[static_cast<std::size_t>(stage)].total();
  };
  const std::int64_t more = total(16) - total(8);
  EXPECT_EQ(more % 8, 0);
  return more / 8;
}

TEST(Recompute, ByLayersKeepsHalfAsManyInputs) {
  constexpr int layers = 8, of_stage = layers / 2;
  const std::int64_t input = std::int64_t{12} * 24 * 4;  // (1, seq, hidden) in f32
  for (const int tp : {1, 2})
    for (const bool sequence_parallel : {false, tp > 1}) {
      const std::int64_t one = sequence_parallel ? input / tp : input;
      // Segments: the inputs of attention and mlp. Layers: the inputs of attention. Both: the
      // stage's output, which may wait for its send.
      const auto kept = [&](RecomputeUnit unit) {
        return bytes_per_micro_batch(unit, layers, 0, tp, sequence_parallel);
      };
      EXPECT_EQ(kept(RecomputeUnit::segment), (2 * of_stage + 1) * one);
      EXPECT_EQ(kept(RecomputeUnit::layer), (of_stage + 1) * one);
    }
}

/// A layer's weights are gathered once for its recomputation and backward, as FSDP does that wraps
/// whole layers; by segments they are gathered as often.
TEST(Recompute, ByLayersGathersWeightsAsOftenAsBySegments) {
  // So many layers and samples that inputs take more memory than the weights and activations of one
  // layer.
  const model::ModelSpec model = test::small_model(32);
  const auto of = [&](RecomputeUnit unit) {
    plan::Plan plan = test::plan_of("zero3", 1, 4, 1, 2);
    plan.schedule.global_batch = 4 * 2 * 16;
    plan.schedule.recompute = true, plan.schedule.recompute_unit = unit;
    const link::LinkedProgram linked = link::link(compile(plan, model));
    int gathers = 0;
    for (const program::Op& op : linked.program.roles[0].ops)
      if (const auto* c = std::get_if<program::Collective>(&op.work))
        gathers += c->move == program::Move::all_gather;
    return std::pair{gathers, linked.memory[0].total()};
  };
  const auto segments = of(RecomputeUnit::segment), whole = of(RecomputeUnit::layer);
  EXPECT_EQ(segments.first, whole.first);
  EXPECT_LT(whole.second, segments.second);
}

/// A trace of KempnerForge (PyTorch's DTensor, Llama, checkpoints of whole layers) has 12 gathers
/// and 8 scatters a layer and micro-batch: benchmarks/profiling/13b_24gpu_profiling.md.
TEST(Recompute, TensorRanksGatherOnceForEachProductWhereTheSoftwareDoes) {
  const auto of_a_layer = [](software::Gathers gathers) {
    const auto counted = [&](int layers) {
      model::ModelSpec model = model::build_model({.name = "small",
                                                   .family = model::Family::llama,
                                                   .layers = layers,
                                                   .hidden = 24,
                                                   .heads = 12,
                                                   .ffn = 48,
                                                   .vocab = 96,
                                                   .seq_len = 12});
      model.software.gathers = gathers;
      model.software.qkv_forward = model.software.qkv_backward = 3;
      plan::Plan plan = plan_of(RecomputeUnit::layer, 1, 2, 1);
      plan.mesh.sequence_parallel = true;
      const link::LinkedProgram linked = link::link(compile(plan, model));
      std::pair<int, int> gathers_scatters;
      for (const program::Op& op : linked.program.roles[0].ops)
        if (const auto* c = std::get_if<program::Collective>(&op.work)) {
          gathers_scatters.first += c->move == program::Move::all_gather;
          gathers_scatters.second += c->move == program::Move::reduce_scatter;
        }
      return gathers_scatters;
    };
    const auto three = counted(3), two = counted(2);
    return std::pair(three.first - two.first, three.second - two.second);
  };
  EXPECT_EQ(of_a_layer(software::Gathers::shared), (std::pair{6, 5}));
  EXPECT_EQ(of_a_layer(software::Gathers::each), (std::pair{12, 8}));
}

TEST(Recompute, ByLayersRunsEachSegmentOnceMoreAndSumsInBetween) {
  constexpr int layers = 4, tp = 2;
  const model::ModelSpec model = test::small_model(layers);
  for (const bool sequence_parallel : {false, true}) {
    const auto counted = [&](RecomputeUnit unit) {
      plan::Plan plan = plan_of(unit, 1, tp, 1);
      plan.mesh.sequence_parallel = sequence_parallel;
      const program::Program program = compile(plan, model);
      std::vector<int> again(model.segments.size(), 0);
      int outputs = 0, collectives = 0;
      for (const program::Op& op : program.roles[0].ops) {
        collectives += std::holds_alternative<program::Collective>(op.work);
        const auto* c = std::get_if<program::Compute>(&op.work);
        if (c == nullptr || c->pass != Pass::recompute) continue;
        ++again[c->segment];
        outputs += find(op, program::Slot::output) != nullptr;
      }
      EXPECT_THAT(again, testing::Each(1));
      return std::pair{outputs, collectives};
    };
    const auto [none, before] = counted(RecomputeUnit::segment);
    const auto [outputs, after] = counted(RecomputeUnit::layer);
    EXPECT_EQ(none, 0);
    EXPECT_EQ(outputs, layers);  // of attention, which the mlp reads
    // An all-reduce a layer; or a reduce-scatter, whose gather replaces that of the kept input.
    EXPECT_EQ(after - before, layers);
  }
}

TEST(Recompute, ALayerThatIsCutBetweenStagesIsRecomputedBySegments) {
  const model::ModelSpec model = test::small_model(4);
  plan::Plan plan = plan_of(RecomputeUnit::layer, 2, 1, 2);
  plan.placement.stages = {{0, 1, 2, 3}, {4, 5, 6, 7, 8, 9}};  // the second layer is cut
  ASSERT_EQ(model.segments[3].kind, model::SegmentKind::attention);
  const program::Program program = compile(plan, model);
  EXPECT_NO_THROW(link::link(program));
  for (const program::Role& role : program.roles)
    for (const program::Op& op : role.ops)
      if (const auto* c = std::get_if<program::Compute>(&op.work);
          c != nullptr && c->pass == Pass::recompute) {
        const bool gives = find(op, program::Slot::output) != nullptr;
        const bool whole = c->segment == 1 || c->segment == 5 || c->segment == 7;
        EXPECT_EQ(gives, whole) << "segment " << c->segment;
      }
}

TEST(Recompute, OfSomeLayersOrOfAttentionAlone) {
  const model::ModelSpec model = test::small_model(8);
  const auto of = [&](RecomputeUnit unit, int layers) {
    plan::Plan plan = plan_of(unit, 2, 1, 4);
    plan.schedule.recompute_layers = layers;
    const program::Program program = compile(plan, model);
    std::vector<std::string> again;
    for (const program::Role& role : program.roles)
      for (const program::Op& op : role.ops)
        if (const auto* c = std::get_if<program::Compute>(&op.work);
            c != nullptr && c->pass == Pass::recompute && c->microbatch == 0)
          again.push_back(model.segments[c->segment].name);
    std::ranges::sort(again);
    return std::pair{again, link::link(program).memory[0].total()};
  };
  using testing::ElementsAre;
  const auto [two, memory_two] = of(RecomputeUnit::segment, 2);
  EXPECT_THAT(two, ElementsAre("L0.attention", "L0.mlp", "L1.attention", "L1.mlp", "L4.attention",
                               "L4.mlp", "L5.attention", "L5.mlp"));
  const auto [one, memory_one] = of(RecomputeUnit::attention, 1);
  EXPECT_THAT(one, ElementsAre("L0.attention", "L4.attention"));
  const auto [attention, memory_attention] = of(RecomputeUnit::attention, 0);
  EXPECT_EQ(attention.size(), 8U);
  const auto [layers, memory_layers] = of(RecomputeUnit::layer, 4);
  EXPECT_EQ(layers.size(), 16U);
  const auto [all, memory_all] = of(RecomputeUnit::segment, 0);
  EXPECT_EQ(all.size(), model.segments.size());
  EXPECT_LT(memory_all, memory_two);
  EXPECT_LT(memory_two, memory_one);
  EXPECT_LT(memory_attention, memory_one);
  EXPECT_LT(memory_layers, memory_attention);
}

TEST(Recompute, TheUnitMattersOnlyWithRecomputation) {
  const model::ModelSpec model = test::small_model(4);
  plan::Plan plan = plan_of(RecomputeUnit::layer, 2, 2, 2);
  plan.schedule.recompute = false;
  plan::Plan segments = plan;
  segments.schedule.recompute_unit = RecomputeUnit::segment;
  EXPECT_EQ(to_text(compile(plan, model)), to_text(compile(segments, model)));
}

}  // namespace
}  // namespace rehearse::methods
