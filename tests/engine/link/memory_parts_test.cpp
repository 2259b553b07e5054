// What the memory of a rank is for.
#include "engine/link/memory_parts.h"

#include <gtest/gtest.h>

#include "engine/link/workspace.h"
#include "engine/methods/strategy.h"
#include "tests/engine/rig.h"

namespace rehearse::link {
namespace {

std::int64_t bytes_of(Part part, const plan::Plan& plan) {
  const model::ModelSpec model = test::small_model(4);
  LinkedProgram linked = link(methods::compile(plan, model), model);
  return at(linked.memory[0].parts, part);
}

// Under sequence parallelism, what recomputation keeps is the result of a reduce-scatter, and only
// an all-gather reads it.
TEST(MemoryParts, KeptPartsOfASequenceAreActivations) {
  plan::Plan plan = test::plan_of("megatron", 1, 1, 2, 2);
  plan.schedule.recompute = true;
  plan.schedule.recompute_unit = plan::RecomputeUnit::layer;
  const std::int64_t whole = bytes_of(Part::activations, plan);
  EXPECT_LE(bytes_of(Part::communication, plan), 16);
  plan.mesh.sequence_parallel = true;
  EXPECT_LE(bytes_of(Part::communication, plan), 16);
  EXPECT_GT(bytes_of(Part::activations, plan), whole / 4);
}

// So are the keys and values that the ranks of a divided sequence exchange.
TEST(MemoryParts, ExchangedKeysAndValuesAreActivations) {
  plan::Plan plan = test::plan_of("ddp", 1, 1, 1, 1);
  plan.mesh.cp = 2, plan.mesh.order = "pp,dp,cp,tp";
  EXPECT_LE(bytes_of(Part::communication, plan), 16);
}

TEST(MemoryParts, PacketsAndErrorFeedbackAreCommunication) {
  EXPECT_GT(bytes_of(Part::communication, test::plan_of("topk-sync", 1, 2, 1, 1)), 1000);
}

}  // namespace
}  // namespace rehearse::link
