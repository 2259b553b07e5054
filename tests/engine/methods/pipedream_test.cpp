// PipeDream's stages: the versions of weights and the activations that each keeps, and steps that
// follow each other without a bubble.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/methods/strategy.h"
#include "tests/engine/rig.h"
#include "tests/message_of.h"

namespace rehearse::methods {
namespace {

model::ModelSpec model_of(int layers, bool tied) {
  model::ModelSpec model = test::small_model(layers);
  model.tied = tied;
  model.groups.clear(), model.segments.clear();
  return model::build_model(model);
}

int versions_of(const program::Role& role, const std::string& storage) {
  const auto it = std::ranges::find(role.storages, storage, &program::Storage::name);
  return it == role.storages.end() ? 0 : it->versions;
}

program::Program compiled(int pp, int micro_batches, const model::ModelSpec& model) {
  plan::Plan plan = test::plan_of("pipedream", pp, 1, 1, micro_batches);
  return compile(plan, model);
}

TEST(PipeDream, KeepsTheVersionsThatStepsInFlightHaveRead) {
  for (const int micro_batches : {1, 2, 3, 4, 8})
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(testing::Message() << micro_batches << " micro-batches, tied " << tied);
      const program::Program program = compiled(4, micro_batches, model_of(4, tied));
      for (int stage = 0; stage < 4; ++stage) {
        // 1 + ceil((S - s - 1) / M); where embeddings are tied, as the first stage.
        const int ahead = tied ? 3 : 3 - stage;
        EXPECT_EQ(versions_of(program.roles[static_cast<std::size_t>(stage)], "W.b0"),
                  1 + (ahead + micro_batches - 1) / micro_batches)
            << "stage " << stage;
      }
    }
}

TEST(PipeDream, HoldsAsManyActivationsAs1F1B) {
  const model::ModelSpec model = model_of(8, false);
  const auto values = [&](const char* method, int micro_batches, std::size_t stage) {
    plan::Plan plan = test::plan_of(method, 4, 1, 1, micro_batches);
    return static_cast<double>(link::link(compile(plan, model)).memory[stage].value);
  };
  // A stage holds S - s micro-batches, whether they are of one step or of as many steps.
  for (const std::size_t stage : {0, 1, 2})
    for (const int micro_batches : {1, 2, 4})
      EXPECT_NEAR(values("pipedream", micro_batches, stage), values("1f1b", 8, stage),
                  0.1 * values("1f1b", 8, stage))
          << "stage " << stage << ", " << micro_batches << " micro-batches";
}

TEST(PipeDream, HasNoBubble) {
  for (const bool tied : {false, true})
    for (const int micro_batches : {1, 3, 4, 8}) {
      SCOPED_TRACE(testing::Message() << micro_batches << " micro-batches, tied " << tied);
      const int stages = micro_batches == 1 ? 8 : 4;
      const test::Rig rig(test::plan_of("pipedream", stages, 1, 1, micro_batches),
                          model_of(64, tied), test::fast(stages));
      double slowest = 0;  // seconds that a stage computes in a step
      for (Id r = 0; r < rig.linked.program.roles.size(); ++r) {
        const program::Role& role = rig.linked.program.roles[r];
        double seconds = 0;
        for (Id o = 0; o < role.ops.size(); ++o)
          if (role.lanes[role.ops[o].lane].name == "compute") seconds += rig.costs.seconds(r, o, 0);
        slowest = std::max(slowest, seconds);
      }
      const execution::Metrics metrics = rig.metrics({.warm_up = 8, .steady = 8});
      EXPECT_NEAR(metrics.mean_step, slowest, 0.02 * slowest);
    }
}

TEST(PipeDream, RefusesMoreStepsInFlightThanAProgramHas) {
  EXPECT_NO_THROW(compiled(16, 1, model_of(32, false)));
  EXPECT_NO_THROW(compiled(31, 2, model_of(32, false)));
  EXPECT_THAT(test::message_of([] { compiled(17, 1, model_of(32, false)); }),
              testing::HasSubstr("the first of 17 stages would be 16 steps behind, at most 15 are "
                                 "possible; nearest: 2"));
}

}  // namespace
}  // namespace rehearse::methods
