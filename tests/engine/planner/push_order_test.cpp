// The order in which partitions go to servers, where it is known without the queue: on a network
// that is much slower or much faster than backward, and by a replay of the rule.
#include "engine/planner/exchange/push_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/methods/lowering/exchange/partitions.h"
#include "engine/methods/strategy.h"
#include "engine/planner/exchange/fusion.h"
#include "engine/planner/search/evaluator.h"
#include "tests/engine/rig.h"

namespace rehearse::planner {
namespace {

constexpr int layers = 8, workers = 3, servers = 2;

plan::Plan plan_with(int credit) {
  plan::Plan plan = test::plan_of("byteps", 1, workers, 1, 1);
  plan.mesh.servers = servers, plan.exchange.machines.credit = credit;
  plan.exchange.bucket = Bytes(4000);
  return methods::prepare(plan, test::small_model(layers));
}

/// In a star in which a kernel takes 1 us and a cable has this bandwidth.
std::vector<Id> order_at(const plan::Plan& plan, double bandwidth) {
  return push_order(plan, test::small_model(layers),
                    test::star(workers + servers, BytesPerSecond(bandwidth), Seconds(0)), nullptr);
}

std::vector<Id> as_completed(std::size_t n) {
  std::vector<Id> out(n);
  std::iota(out.begin(), out.end(), Id{0});
  return out;
}

TEST(PushOrder, FollowsBackwardWhereNothingWaits) {
  const plan::Plan plan = plan_with(1);
  const std::vector<Id> order = order_at(plan, 1e30);
  EXPECT_EQ(order, as_completed(order.size()));
}

TEST(PushOrder, FollowsBackwardWithoutALimit) {
  const plan::Plan plan = plan_with(1 << 20);
  const std::vector<Id> order = order_at(plan, 1e6);
  const auto partitions = methods::partitions_of(plan, test::small_model(layers));
  ASSERT_EQ(order.size(), partitions.size());
  // Those of one layer are ready at the same time.
  for (std::size_t i = 1; i < order.size(); ++i)
    EXPECT_LE(partitions[order[i]].layer, partitions[order[i - 1]].layer);
}

// The first partition takes longer than all of backward. When it is back, all others are ready.
TEST(PushOrder, TheFirstLayerOvertakesAllThatWait) {
  const plan::Plan plan = plan_with(1);
  const std::vector<Id> order = order_at(plan, 1e3);
  const auto partitions = methods::partitions_of(plan, test::small_model(layers));
  ASSERT_TRUE(std::ranges::is_permutation(order, as_completed(partitions.size())));
  EXPECT_EQ(order[0], 0U);
  EXPECT_EQ(partitions[order[1]].layer, 0U);
  for (std::size_t i = 2; i < order.size(); ++i)
    EXPECT_LE(partitions[order[i - 1]].layer, partitions[order[i]].layer);
}

// Between the extremes: what goes is, of what is ready, the nearest to the input. A partition that
// goes before one nearer to the input was ready before that one.
TEST(PushOrder, NothingNearerToTheInputIsReadyWhenAPartitionGoes) {
  const model::ModelSpec model = test::small_model(layers);
  int overtakes = 0;
  for (const double bandwidth : {1e8, 1e9, 5e9})
    for (const int credit : {1, 2, 5}) {
      const plan::Plan plan = plan_with(credit);
      const cluster::Cluster cluster =
          test::star(workers + servers, BytesPerSecond(bandwidth), Seconds(0));
      const auto partitions = methods::partitions_of(plan, model);
      const std::vector<double> ready = ready_after(plan, model, cluster, nullptr);
      const std::vector<Id> order = order_at(plan, bandwidth);
      for (std::size_t i = 0; i < order.size(); ++i)
        for (std::size_t k = i + 1; k < order.size(); ++k) {
          const Id before = partitions[order[i]].layer, after = partitions[order[k]].layer;
          overtakes += before < after;
          if (after < before) {
            EXPECT_LT(ready[before], ready[after]);
          }
        }
    }
  EXPECT_GT(overtakes, 100);
}

// Priorities pay where the network is the bottleneck: the next forward begins while later layers'
// gradients are still on their way.
TEST(PushOrder, MakesStepsShorter) {
  const model::ModelSpec model = test::small_model(layers);
  const cluster::Cluster cluster = test::star(workers + servers, BytesPerSecond(1e9), Seconds(0));
  Evaluator evaluator(model, cluster, nullptr);
  plan::Plan plan = plan_with(2);
  const double by_readiness = evaluator.seconds(plan);
  plan.exchange.machines.push_order = push_order(plan, model, cluster, nullptr);
  EXPECT_LT(evaluator.seconds(plan), by_readiness);
}

}  // namespace
}  // namespace rehearse::planner
