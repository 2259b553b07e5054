// Tests stages, devices and shares of a mesh: the dynamic program against brute force, the
// estimates against the linker and the dry run, and the gain on unlike devices.
#include "engine/planner/placement/placement.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>

#include "engine/base/errors.h"
#include "engine/link/workspace.h"
#include "engine/planner/memory/needs.h"
#include "engine/planner/placement/partition.h"
#include "engine/planner/placement/rank_grid.h"
#include "tests/engine/rig.h"

namespace rehearse::planner {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

double dry_run_seconds(plan::Plan plan, const model::ModelSpec& model,
                       const cluster::Cluster& cluster) {
  plan = methods::prepare(std::move(plan), model);
  const link::LinkedProgram linked = link::link(methods::compile(plan, model), model);
  const costs::Costs costs(
      linked, model, cluster,
      {.rank_to_device = plan.placement.rank_to_device, .optimizer = plan.optimizer});
  const cluster::Disturber disturber(cluster::Disturbance{}, linked.program.world_size);
  execution::MetricsSink sink(linked, model, cluster, costs, plan.schedule.global_batch,
                              {.warm_up = 1, .steady = 2});
  dry_run(linked, costs, disturber, 3, sink);
  return sink.finish().mean_step;
}

plan::Plan with(plan::Plan plan, const Placement& placement) {
  plan.placement.stages = placement.stages;
  plan.schedule.shares = placement.shares;
  plan.placement.rank_to_device = placement.rank_to_device;
  return plan;
}

plan::Plan mesh_of(const std::string& method, int pp, int dp, int tp, int micro_batches,
                   int batch) {
  plan::Plan plan{.method = method,
                  .mesh = {.pp = pp, .dp = dp, .tp = tp},
                  .schedule = {.micro_batches = micro_batches}};
  plan.schedule.global_batch = batch;
  return plan;
}

TEST(Partition, EqualsBruteForce) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    const std::size_t n = 3 + random() % 8, chunks = 1 + random() % std::min<std::size_t>(n, 4);
    std::vector<double> work(n), bytes(n), speed(chunks), room(chunks);
    for (double& w : work) w = static_cast<double>(1 + random() % 20);
    for (double& b : bytes) b = static_cast<double>(1 + random() % 5);
    for (double& s : speed) s = static_cast<double>(1 + random() % 4);
    for (double& r : room) r = static_cast<double>(3 + random() % 20);
    const ChunkSeconds seconds = [&](std::size_t c, std::size_t begin, std::size_t end) {
      const auto sum = [&](const std::vector<double>& of) {
        return std::accumulate(of.begin() + static_cast<std::ptrdiff_t>(begin),
                               of.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
      };
      return sum(bytes) > room[c] ? infinite : sum(work) / speed[c];
    };
    // All partitions, as sets of inner cuts.
    std::pair<double, double> best{infinite, infinite};
    for (unsigned mask = 0; mask < 1U << (n - 1); ++mask) {
      std::vector<std::size_t> ends;
      for (std::size_t i = 1; i < n; ++i)
        if (mask >> (i - 1) & 1) ends.push_back(i);
      ends.push_back(n);
      if (ends.size() != chunks) continue;
      std::pair<double, double> now{0, 0};
      for (std::size_t c = 0; c < chunks; ++c) {
        const double own = seconds(c, c == 0 ? 0 : ends[c - 1], ends[c]);
        now = {std::max(now.first, own), now.second + own};
      }
      best = std::min(best, now);
    }
    const auto found = partition(n, chunks, seconds);
    ASSERT_EQ(found.has_value(), best.first < infinite) << "seed " << seed;
    if (!found) continue;
    double worst = 0, sum = 0;
    for (std::size_t c = 0; c < chunks; ++c) {
      const double own = seconds(c, c == 0 ? 0 : (*found)[c - 1], (*found)[c]);
      worst = std::max(worst, own), sum += own;
    }
    EXPECT_DOUBLE_EQ(worst, best.first) << "seed " << seed;
    EXPECT_GE(sum, best.second * (1 - 1e-12)) << "seed " << seed;
  }
}

TEST(Partition, MemoryEstimateIsNearWhatTheLinkerPlans) {
  const model::ModelSpec model = model::load_model("gpt2-124m", 0);
  const cluster::Cluster cluster = cluster::load_cluster("paper-homogeneous");
  struct Case {
    const char* method;
    program::DType precision;
    bool recompute;
    int zero;
    plan::RecomputeUnit unit = plan::RecomputeUnit::segment;
  };
  for (const Case& c :
       {Case{"1f1b", program::DType::f32, true, 0, plan::RecomputeUnit::layer},
        Case{"1f1b", program::DType::f32, false, 0}, Case{"1f1b", program::DType::f16, false, 0},
        Case{"1f1b", program::DType::f32, true, 0}, Case{"gpipe", program::DType::f32, false, 0},
        Case{"1f1b", program::DType::f32, false, 1}}) {
    plan::Plan plan = mesh_of(c.method, 4, 2, 1, 8, 64);
    plan.precision = c.precision, plan.schedule.recompute = c.recompute,
    plan.exchange.sharding.zero = c.zero, plan.schedule.recompute_unit = c.unit;
    plan = methods::prepare(std::move(plan), model);
    const link::LinkedProgram linked = link::link(methods::compile(plan, model), model);
    const SegmentTable table(model, plan, cluster, nullptr);
    for (int stage = 0; stage < plan.mesh.pp; ++stage) {
      const auto& segments = plan.placement.stages[static_cast<std::size_t>(stage)];
      const double guess =
          table.bytes(stage, plan.samples(), segments.front(), segments.back() + 1);
      const auto rank = RankGrid(plan).rank(stage, 0, 0);
      const auto planned = static_cast<double>(linked.memory[linked.role_of[rank]].total());
      EXPECT_NEAR(guess / planned, 1, 0.15)
          << c.method << " stage " << stage << " zero " << c.zero << " recompute " << c.recompute;
    }
  }
}

TEST(RankGrid, OfAPipelineIsEq1TimesTwo) {
  // Two stages of one rank. c_l = samples x tokens x hidden x 4 bytes = 2 x 12 x 24 x 4 = 2304 per
  // micro-batch and direction; 3 micro-batches.
  const model::ModelSpec model = test::small_model(4);
  plan::Plan plan = mesh_of("1f1b", 2, 1, 1, 3, 6);
  plan = methods::prepare(std::move(plan), model);
  const std::vector<RankTraffic> traffic = traffic_of(model, plan);
  ASSERT_EQ(traffic.size(), 2U);
  EXPECT_DOUBLE_EQ(traffic[0].bytes, 3 * 2304);
  EXPECT_EQ(traffic[0].to, 1U);
  EXPECT_DOUBLE_EQ(traffic[1].bytes, 3 * 2304);
  EXPECT_EQ(traffic[1].to, 0U);
}

TEST(Placement, AlikeDevicesStayInOrderAndStagesEqual) {
  const model::ModelSpec model = test::small_model(8);
  const cluster::Cluster cluster = test::fast(4);
  const plan::Plan mesh = mesh_of("1f1b", 4, 1, 1, 8, 8);
  const Placement placement = place(model, cluster, mesh, nullptr);
  EXPECT_EQ(placement.rank_to_device, (std::vector<Id>{0, 1, 2, 3}));
  EXPECT_TRUE(placement.shares.empty());
  EXPECT_TRUE(placement.fits);
  ASSERT_TRUE(placement.exact);
  EXPECT_LE(*placement.exact, placement.local * (1 + 1e-12));
  EXPECT_LE(placement.local, placement.greedy * (1 + 1e-12));
}

TEST(Placement, TensorGroupsShareANode) {
  // Nodes of two devices and tp 2. The order of the mesh alone would put tp ranks on different
  // nodes, because pp is the innermost axis.
  const model::ModelSpec model = model::load_model("gpt2-124m", 0);
  const cluster::Cluster cluster = cluster::load_cluster("paper-homogeneous");
  plan::Plan mesh = mesh_of("megatron", 2, 8, 2, 8, 256);
  mesh.mesh.order = "tp,dp,pp";
  const Placement placement = place(model, cluster, mesh, nullptr, false);
  const RankGrid ranks(mesh);
  const auto node = [&](Id rank) { return cluster.devices()[placement.rank_to_device[rank]].node; };
  for (int p = 0; p < 2; ++p)
    for (int d = 0; d < 8; ++d) EXPECT_EQ(node(ranks.rank(p, d, 0)), node(ranks.rank(p, d, 1)));
  const plan::Plan plan = with(mesh, placement);
  EXPECT_LT(dry_run_seconds(plan, model, cluster), 0.7 * dry_run_seconds(mesh, model, cluster));
}

TEST(Placement, UnlikeDevicesGetUnlikeStages) {
  // The cluster of Sun 2026: 24 RTX 4090 and 8 V100.
  const model::ModelSpec model = model::load_model("bert-large", 0);
  const cluster::Cluster cluster = cluster::load_cluster("paper");
  plan::Plan mesh = mesh_of("1f1b", 4, 8, 1, 16, 512);
  mesh.precision = program::DType::f16;
  const Placement placement = place(model, cluster, mesh, nullptr, false);
  ASSERT_EQ(placement.stages.size(), 4U);
  // V100s are slower, so a stage with V100s gets less work than one without.
  double most_with_v100 = 0, least_without = infinite;
  for (std::size_t s = 0; s < 4; ++s) {
    double work = 0;
    for (Id segment : placement.stages[s])
      work +=
          work_of(model, segment, program::Pass::forward, 4, 1, program::DType::f16).flops.value;
    bool slow = false;
    for (int d = 0; d < 8; ++d) {
      const Id rank = RankGrid(mesh).rank(static_cast<int>(s), d, 0);
      slow = slow || cluster.kind_of(placement.rank_to_device[rank]).name != "RTX 4090";
    }
    if (slow) most_with_v100 = std::max(most_with_v100, work);
    if (!slow) least_without = std::min(least_without, work);
  }
  EXPECT_GT(most_with_v100, 0);
  EXPECT_LT(most_with_v100, least_without);
  const double equal = dry_run_seconds(mesh, model, cluster);
  const double unlike = dry_run_seconds(with(mesh, placement), model, cluster);
  std::printf("step of pp 4 x dp 8 on the paper's cluster: equal %.4f s, placed %.4f s\n", equal,
              unlike);
  EXPECT_LT(unlike, 0.85 * equal);
}

TEST(Placement, SharesFollowSpeed) {
  const model::ModelSpec model = model::load_model("gpt2-124m", 0);
  const cluster::Cluster cluster = cluster::load_cluster("paper");
  plan::Plan mesh = mesh_of("ddp", 1, 32, 1, 1, 512);
  mesh.precision = program::DType::f16;
  const Placement placement = place(model, cluster, mesh, nullptr, true);
  ASSERT_EQ(placement.shares.size(), 32U);
  EXPECT_EQ(std::accumulate(placement.shares.begin(), placement.shares.end(), 0), 512);
  int fast_share = 0, slow_share = 1000;
  for (std::size_t r = 0; r < 32; ++r) {
    const bool slow = cluster.kind_of(placement.rank_to_device[r]).name != "RTX 4090";
    if (slow) slow_share = std::min(slow_share, placement.shares[r]);
    if (!slow) fast_share = std::max(fast_share, placement.shares[r]);
  }
  EXPECT_LT(slow_share, fast_share);
  EXPECT_TRUE(place(model, cluster, mesh, nullptr, false).shares.empty());
  // Equal shares do not divide this batch.
  mesh.schedule.global_batch = 500;
  const Placement odd = place(model, cluster, mesh, nullptr, true);
  EXPECT_EQ(std::accumulate(odd.shares.begin(), odd.shares.end(), 0), 500);
}

/// Two nodes of four devices; consecutive devices are on the same node, or `in_turn` alternate.
cluster::Cluster two_nodes(bool in_turn) {
  cluster::Cluster c;
  const Id kind = c.add_kind({.name = "unit",
                              .memory = Bytes(1e12),
                              .peak_f32 = FlopsPerSecond(1e12),
                              .memory_bandwidth = BytesPerSecond(1e12)});
  const Id fabric = c.add_vertex("fabric");
  std::vector<Id> bus;
  for (Id n = 0; n < 2; ++n) {
    bus.push_back(c.add_vertex("bus" + std::to_string(n), n));
    c.connect(bus[n], fabric, "nic" + std::to_string(n), BytesPerSecond(1e9), Seconds(1e-6));
  }
  for (Id i = 0; i < 8; ++i) {
    const Id n = in_turn ? i % 2 : i / 4;
    const Id d = c.add_device("gpu" + std::to_string(i), kind, n);
    c.connect(c.vertex_of(d), bus[n], "", BytesPerSecond(1e10), Seconds(1e-6));
  }
  return c;
}

TEST(Placement, NumberingOfSymmetricDevicesDoesNotMatter) {
  const model::ModelSpec model = test::small_model(8);
  const cluster::Cluster straight = two_nodes(false), mixed = two_nodes(true);
  for (const auto& [pp, dp, tp] :
       {std::tuple{2, 1, 4}, {2, 2, 2}, {4, 2, 1}, {1, 8, 1}, {8, 1, 1}}) {
    const plan::Plan mesh = mesh_of(tp > 1   ? "megatron"
                                    : pp > 1 ? "1f1b"
                                             : "ddp",
                                    pp, dp, tp, 8, 8 * dp);
    const Placement a = place(model, straight, mesh, nullptr),
                    b = place(model, mixed, mesh, nullptr);
    EXPECT_NEAR(a.cost, b.cost, 1e-9 * a.cost) << pp << dp << tp;
    EXPECT_NEAR(a.seconds, b.seconds, 1e-9 * a.seconds) << pp << dp << tp;
    EXPECT_EQ(a.stages, b.stages);
    ASSERT_TRUE(a.exact && b.exact);
    EXPECT_NEAR(*a.exact, *b.exact, 1e-9 * *a.exact);
    EXPECT_NEAR(a.cost, *a.exact, 1e-9 * a.cost);  // small enough for the exact solution
  }
}

TEST(Placement, SeamsOfLayersStandBesideThePapersColocation) {
  // c = 2 x 8 samples x 12 tokens x 24 x 4 bytes. Traffic between two layers costs 2 / 1e10 s per
  // byte inside a node and 2 / 1e9 more between nodes. The paper's co-location: two runs of four
  // layers, one device per layer.
  const double c = 2.0 * 8 * 12 * 24 * 4, inside = 2e-10, across = 2.2e-9;
  const auto placed = [&](const std::string& method, int pp, int dp, int tp) {
    return place(test::small_model(8), two_nodes(false), mesh_of(method, pp, dp, tp, 1, 8),
                 nullptr);
  };
  const Placement whole = placed("ddp", 1, 8, 1);
  EXPECT_EQ(whole.seams, 0);
  ASSERT_TRUE(whole.colocated);
  EXPECT_NEAR(*whole.colocated, c * (6 * inside + across), 1e-12 * c);
  const Placement nodes = placed("megatron", 2, 1, 4);  // one stage per node
  EXPECT_NEAR(nodes.seams, c * across, 1e-12 * c);
  EXPECT_NE(gap_text(nodes).find("of the layers' seams alone 4.055e-05 s, by the paper's "
                                 "co-location 6.267e-05 s"),
            std::string::npos)
      << gap_text(nodes);
}

TEST(Placement, StagesStayBelowTheMemoryOfUnlikeDevices) {
  // The second device is as fast but has much less memory: its stage shrinks until it fits.
  const model::ModelSpec model = test::small_model(8);
  const auto build = [](double small) {
    cluster::Cluster c;
    const Id hub = c.add_vertex("switch");
    for (Id i = 0; i < 2; ++i) {
      const Id kind = c.add_kind({.name = "kind" + std::to_string(i),
                                  .memory = Bytes(i == 1 ? small : 1e12),
                                  .peak_f32 = FlopsPerSecond(1e12),
                                  .memory_bandwidth = BytesPerSecond(1e12)});
      const Id d = c.add_device("gpu" + std::to_string(i), kind, i);
      c.connect(c.vertex_of(d), hub, "", BytesPerSecond(1e10), Seconds(1e-6));
    }
    return c;
  };
  const plan::Plan mesh = mesh_of("1f1b", 2, 1, 1, 4, 4);
  const Placement roomy = place(model, build(1e12), mesh, nullptr);
  const std::size_t half = roomy.stages[roomy.rank_to_device[0] == 0 ? 1 : 0].size();
  const Placement tight = place(model, build(3.6e5), mesh, nullptr);
  ASSERT_TRUE(tight.fits);
  const std::size_t on_small = tight.rank_to_device[0] == 1 ? 0 : 1;
  EXPECT_LT(tight.stages[on_small].size(), half);
  const plan::Plan plan = methods::prepare(with(mesh, tight), model);
  const link::LinkedProgram linked = link::link(methods::compile(plan, model), model);
  for (const DeviceNeed& need : device_needs(linked, build(3.6e5), plan.placement.rank_to_device))
    EXPECT_TRUE(need.fits()) << need.kind << " " << need.need;
  EXPECT_FALSE(place(model, build(10), mesh, nullptr).fits);
}

TEST(Placement, TooFewDevices) {
  EXPECT_THROW(place(test::small_model(4), test::fast(2), mesh_of("ddp", 1, 4, 1, 1, 4), nullptr),
               InputError);
}

}  // namespace
}  // namespace rehearse::planner
