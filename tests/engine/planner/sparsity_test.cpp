// Tests eq. 3 and 4 of Sun 2026 against values worked out by hand, and the choice of exchanges
// against the bytes that they send.
#include "engine/planner/exchange/sparsity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "engine/base/errors.h"
#include "engine/methods/passes/passes.h"
#include "engine/methods/strategy.h"
#include "engine/program/packets.h"
#include "tests/engine/rig.h"

namespace rehearse::planner {
namespace {

TEST(Sparsity, EquationThreeByHand) {
  // s = 0.95 - 0.25 (v - 2) / (10 - 2): v = 2: 0.95; 4: 0.95 - 0.25 / 4 = 0.8875; 6: 0.825; 10: 0.7
  const std::vector<double> s = sparsity(std::vector<double>{4, 2, 10, 6}, 0.7, 0.95);
  ASSERT_EQ(s.size(), 4U);
  EXPECT_NEAR(s[0], 0.8875, 1e-15);
  EXPECT_NEAR(s[1], 0.95, 1e-15);
  EXPECT_NEAR(s[2], 0.7, 1e-15);
  EXPECT_NEAR(s[3], 0.825, 1e-15);
}

TEST(Sparsity, EqualVariancesAndOneLayerGetTheMiddle) {
  for (const double s : sparsity(std::vector<double>{3, 3, 3}, 0.7, 0.95))
    EXPECT_NEAR(s, 0.825, 1e-15);
  for (const double s : sparsity(std::vector<double>{0, 0}, 0.2, 0.2)) EXPECT_EQ(s, 0.2);
  EXPECT_NEAR(sparsity(std::vector<double>{5}, 0.7, 0.95)[0], 0.825, 1e-15);
  EXPECT_TRUE(sparsity({}, 0.7, 0.95).empty());
}

TEST(Sparsity, FallsWithVarianceWithinTheClamp) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> draw(-20, 6);
  for (int round = 0; round < 100; ++round) {
    std::vector<double> variance(20);
    for (double& v : variance) v = draw(random);
    std::sort(variance.begin(), variance.end());
    const auto s = sparsity(variance, 0.7, 0.95), wide = sparsity(variance, 0.5, 0.95);
    EXPECT_TRUE(std::is_sorted(s.rbegin(), s.rend()));
    EXPECT_EQ(s.front(), 0.95);
    EXPECT_EQ(s.back(), 0.7);
    // A smaller s_min never makes a layer sparser.
    for (std::size_t i = 0; i < s.size(); ++i) EXPECT_LE(wide[i], s[i] + 1e-15);
  }
}

TEST(Sparsity, RefusesWhatIsNoVariance) {
  for (const double bad : {std::nan(""), -1.0, std::numeric_limits<double>::infinity()})
    EXPECT_THROW(sparsity(std::vector<double>{1, bad}, 0.7, 0.95), InputError);
  EXPECT_THROW(sparsity(std::vector<double>{1}, 0.9, 0.8), InputError);
  EXPECT_THROW(sparsity(std::vector<double>{1}, 0.9, 1), InputError);
}

TEST(Sparsity, EquationFourIsExactForEverySize) {
  // (1 - s) n in thousandths is an integer, so the expected ceil has no rounding error.
  for (std::int64_t n = 1; n <= 1000; ++n)
    for (int thousandths = 0; thousandths < 1000; ++thousandths)
      ASSERT_EQ(kept(n, thousandths / 1000.0), ((1000 - thousandths) * n + 999) / 1000)
          << n << " at s = 0." << thousandths;
  EXPECT_EQ(kept(10, 0.7), 3);   // 0.30000000000000004 x 10
  EXPECT_EQ(kept(20, 0.95), 1);  // 0.050000000000000044 x 20
  EXPECT_EQ(kept(21, 0.95), 2);  // 1.05
  EXPECT_EQ(kept(1'000'000'000, 0.9), 100'000'000);
  EXPECT_EQ(kept(7, 0), 7);
}

model::ModelSpec model_of(int layers, int hidden) {
  return model::build_model({.name = "small",
                             .layers = layers,
                             .hidden = hidden,
                             .heads = 8,
                             .ffn = 4 * hidden,
                             .vocab = 1024,
                             .seq_len = 16});
}

plan::Plan ready(plan::Plan plan, const model::ModelSpec& model) {
  plan.method = "adaptive";
  plan.schedule.global_batch = plan.mesh.dp * plan.schedule.micro_batches;
  return methods::prepare(plan, model);
}

/// `nodes` nodes of `gpus` devices; bandwidth of each device and of each node.
cluster::Cluster two_tier(int nodes, int gpus, double inside, double across) {
  cluster::Cluster c;
  const Id kind = c.add_kind({.name = "unit",
                              .memory = Bytes(1e12),
                              .peak_f32 = FlopsPerSecond(1e15),
                              .memory_bandwidth = BytesPerSecond(1e12),
                              .launch = Seconds(1e-6)});
  const Id hub = c.add_vertex("switch");
  for (int n = 0; n < nodes; ++n) {
    const Id bus = c.add_vertex("bus" + std::to_string(n));
    c.connect(bus, hub, "nic" + std::to_string(n), BytesPerSecond(across), Seconds(1e-6));
    for (int g = 0; g < gpus; ++g) {
      const Id d = c.add_device("gpu" + std::to_string(n * gpus + g), kind, static_cast<Id>(n));
      c.connect(c.vertex_of(d), bus, "lane" + std::to_string(n * gpus + g), BytesPerSecond(inside),
                Seconds(1e-7));
    }
  }
  return c;
}

TEST(Exchanges, ThePapersDensityIsSlowerAllGatheredOverManyRanks) {
  // 10% kept, 8 bytes per entry: 31 x 0.8 n bytes per rank; a dense ring sends 2 x 31/32 x 4 n.
  const model::ModelSpec model = model_of(2, 512);
  plan::Plan plan = ready({.mesh = {.dp = 32}}, model);
  plan.exchange.sparse.coding = program::Coding::index32;
  const cluster::Cluster cluster = test::star(32, BytesPerSecond(1e9), Seconds(1e-6));
  const auto all = exchanges_of(plan, model, cluster, nullptr, 1, 0.1);
  ASSERT_EQ(all.size(), 2U);  // one rank per node, so no two-level exchange
  EXPECT_EQ(all.front().exchange.reduction, plan::Reduction::dense);
  EXPECT_NEAR(all[1].transfer / all[0].transfer, 31 * 0.8 / (2 * 31.0 / 32 * 4), 0.05);
  // At 1% kept, sparse is faster: 31 x 0.08 n bytes.
  EXPECT_EQ(exchanges_of(plan, model, cluster, nullptr, 1, 0.01).front().exchange.reduction,
            plan::Reduction::sparse);
}

TEST(Exchanges, NodesReduceInsideWhereTheNetworkBetweenIsSlow) {
  const model::ModelSpec model = model_of(2, 512);
  const plan::Plan plan = ready({.mesh = {.dp = 8}}, model);
  const cluster::Cluster slow = two_tier(2, 4, 100e9, 1e9), even = two_tier(1, 8, 100e9, 1e9);
  const auto chosen = fastest_exchanges(plan, model, slow, nullptr);
  ASSERT_EQ(chosen.size(), model.segments.size());
  EXPECT_EQ(chosen[1].exchange.reduction, plan::Reduction::two_level);
  EXPECT_NEAR(chosen[1].exchange.density, 0.175, 1e-12);  // no variances: 1 - 0.825
  // 17.5% kept: a bitmap (n / 8 bytes) is smaller than two bytes for each kept entry (0.35 n).
  EXPECT_EQ(chosen[1].exchange.coding, program::Coding::bitmap);
  for (const ExchangeSeconds& one : fastest_exchanges(plan, model, even, nullptr))
    EXPECT_NE(one.exchange.reduction, plan::Reduction::two_level);
}

TEST(Exchanges, FollowTheProfilesVariances) {
  const model::ModelSpec model = model_of(2, 512);
  plan::Plan plan = ready({.mesh = {.dp = 4}}, model);
  plan.exchange.sparse.reduction = plan::Reduction::sparse;
  costs::Profile profile;
  for (Id s = 0; s < model.segments.size(); ++s)
    profile.variances.push_back({.model = "small",
                                 .segment = s,
                                 .total = 1000.0 - s,
                                 .per_element = static_cast<double>(s)});
  const cluster::Cluster cluster = test::star(4, BytesPerSecond(1e9), Seconds(1e-6));
  const auto chosen = fastest_exchanges(plan, model, cluster, &profile);
  EXPECT_NEAR(chosen.front().exchange.density, 0.05, 1e-12);  // the smallest variance per element
  EXPECT_NEAR(chosen.back().exchange.density, 0.3, 1e-12);
  for (std::size_t i = 1; i < chosen.size(); ++i)
    EXPECT_GT(chosen[i].exchange.density, chosen[i - 1].exchange.density);
  profile.variances.pop_back();
  EXPECT_THROW(fastest_exchanges(plan, model, cluster, &profile), InputError);
}

TEST(Exchanges, ThePlanMayLeaveNoChoice) {
  const model::ModelSpec model = model_of(1, 64);
  plan::Plan plan = ready({.mesh = {.dp = 4}}, model);
  const cluster::Cluster cluster = test::star(4, BytesPerSecond(1e9), Seconds(1e-6));
  EXPECT_EQ(exchanges_of(plan, model, cluster, nullptr, 1, 0.1).size(), 4U);
  plan.exchange.sparse.coding = program::Coding::delta16;
  EXPECT_EQ(exchanges_of(plan, model, cluster, nullptr, 1, 0.1).size(), 2U);
  plan.exchange.sparse.reduction = plan::Reduction::dense;
  EXPECT_EQ(exchanges_of(plan, model, cluster, nullptr, 1, 0.1).size(), 1U);
  plan.exchange.sparse.reduction = plan::Reduction::two_level;
  EXPECT_EQ(fastest_exchanges(plan, model, cluster, nullptr)[1].exchange.reduction,
            plan::Reduction::two_level);
}

/// The suffix of the storages of a parameter group's bucket, such as ".b3".
std::string bucket_of(const program::Role& role, const std::string& group) {
  for (const program::View& view : role.views)
    if (view.name == "G." + group) return role.storages[view.storage].name.substr(1);
  return "";
}

TEST(Exchanges, PredictionIsTheDryRunsWhereNothingElseRuns) {
  // Only one bucket's exchange is on the network: its collectives take the seconds of costs.h.
  const model::ModelSpec model = model_of(1, 256);
  for (const plan::Reduction reduction :
       {plan::Reduction::dense, plan::Reduction::sparse, plan::Reduction::two_level}) {
    plan::Plan plan{.mesh = {.dp = 6}};
    plan.exchange.sparse.layers.assign(model.segments.size(), {});
    plan.exchange.sparse.layers[1] = {0.1, reduction, program::Coding::bitmap};
    plan = ready(plan, model);
    plan.exchange.sparse.reduction = reduction,
    plan.exchange.sparse.coding = program::Coding::bitmap;
    const cluster::Cluster cluster = two_tier(2, 3, 10e9, 1e9);
    plan.placement.node_of = nodes_of(plan, cluster);
    const link::LinkedProgram linked = link::link(methods::choose_collectives(
        methods::compile(plan, model), cluster, plan.placement.rank_to_device));
    const costs::Costs costs(linked, model, cluster, {});
    const auto predicted = exchanges_of(plan, model, cluster, nullptr, 1, 0.1).front();
    double seconds = 0;
    const program::Role& role = linked.program.roles[0];
    const std::string bucket = bucket_of(role, model.groups[model.segments[1].groups[0]].name);
    ASSERT_NE(bucket, "");
    for (Id o = 0; o < role.ops.size(); ++o)
      if (const program::Ref* ref = find(role.ops[o], program::Slot::source);
          ref && std::holds_alternative<program::Collective>(role.ops[o].work) &&
          role.storages[role.views[ref->view].storage].name.ends_with(bucket))
        seconds += costs.seconds(0, o, 0);
    EXPECT_NEAR(predicted.transfer / seconds, 1, 0.05) << static_cast<int>(reduction);
  }
}

}  // namespace
}  // namespace rehearse::planner
