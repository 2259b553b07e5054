// Costs of local work and communication: devices, profiles, contention, classes, and refusals.
#include "engine/costs/costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/methods/passes/passes.h"
#include "engine/model/launches.h"
#include "tests/engine/rig.h"
#include "tests/message_of.h"

namespace rehearse::costs {
namespace {

Id first_op(const test::Rig& rig, Id role, model::SegmentKind kind, program::Pass pass) {
  const auto& ops = rig.linked.program.roles[role].ops;
  for (Id o = 0; o < ops.size(); ++o)
    if (const auto* c = std::get_if<program::Compute>(&ops[o].work);
        c && c->pass == pass && rig.model.segments[c->segment].kind == kind)
      return o;
  return none;
}

TEST(Costs, ComputeIsTheSumOfItsKernels) {
  cluster::Cluster c;
  c.add_kind({.name = "gpu",
              .memory = Bytes(1e12),
              .peak_f32 = FlopsPerSecond(1e13),
              .memory_bandwidth = BytesPerSecond(1e12),
              .f32_efficiency = 0.5,
              .memory_efficiency = 0.8,
              .launch = Seconds(1e-6)});
  c.add_device("gpu0", 0, 0);
  const test::Rig rig(test::plan_of("ddp", 1, 1, 1, 1), test::small_model(2), c);
  const Id o = first_op(rig, 0, model::SegmentKind::mlp, program::Pass::forward);
  const auto* work = std::get_if<program::Compute>(&rig.linked.program.roles[0].ops[o].work);
  double expected = 0;
  for (const model::Launch& l :
       launches_of(rig.model, work->segment, program::Pass::forward, 1, 1, program::DType::f32)) {
    const double flops = l.kind == model::Launch::Kind::memory ? 0 : l.flops();
    expected += std::max(flops / 0.5e13, l.bytes / 0.8e12) + 1e-6;
  }
  EXPECT_NEAR(rig.costs.seconds(0, o, 0), expected, 1e-15);
  EXPECT_FALSE(rig.costs.calibrated());
  const Id b = first_op(rig, 0, model::SegmentKind::mlp, program::Pass::backward);
  EXPECT_GT(rig.costs.seconds(0, b, 0), rig.costs.seconds(0, o, 0));
}

TEST(Costs, HalvesShareABackwardThatWasMeasuredWhole) {
  const test::Rig rig(test::plan_of("zb-h1", 2, 1, 1, 2), test::small_model(2), test::fast(2));
  const auto times = [&](bool halves) {
    Profile profile;
    for (const auto& [pass, seconds] : {std::pair{program::Pass::forward, 1.0},
                                        {program::Pass::backward, 3.0},
                                        {program::Pass::backward_input, 2.0},
                                        {program::Pass::backward_weight, 0.5}})
      if (halves || pass == program::Pass::forward || pass == program::Pass::backward)
        profile.segments.push_back({rig.model.name, model::SegmentKind::mlp, pass, 1,
                                    rig.model.seq_len, 1, program::DType::f32, seconds});
    const Costs costs(rig.linked, rig.model, rig.cluster, {.profile = &profile});
    const auto seconds = [&](program::Pass pass) {
      const Id role = first_op(rig, 0, model::SegmentKind::mlp, pass) == none ? 1 : 0;
      return costs.seconds(role, first_op(rig, role, model::SegmentKind::mlp, pass), 0);
    };
    return std::pair(seconds(program::Pass::backward_input),
                     seconds(program::Pass::backward_weight));
  };
  // An mlp's halves have equally many FLOPs.
  EXPECT_EQ(times(false), std::pair(1.5, 1.5));
  EXPECT_EQ(times(true), std::pair(2.0, 0.5));
}

TEST(Costs, GathersOverManyNodesPayLatencyBandwidthAndRails) {
  // ZeRO-3's all-gather on DGX H100, computed by hand as in docs/simulator.md. Across nodes: each
  // GPU has its own NIC behind 48 GB/s of PCIe, 4 us of latency. Inside: NVLink, 370 GB/s and 1.4
  // us.
  constexpr double whole = 352e6;  // bytes: an mlp of Llama 3 8B in bf16
  for (const int nodes : {2, 8, 64}) {
    const cluster::Cluster cluster = cluster::load_cluster("dgx-h100:" + std::to_string(nodes));
    const int ranks = 8 * nodes;
    std::vector<Id> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), Id{0});
    const auto seconds = [&](program::Algorithm algorithm) {
      return collective_seconds(cluster, program::Move::all_gather, algorithm,
                                static_cast<std::int64_t>(whole / 2), program::DType::bf16,
                                {all})[0];
    };
    const double across = (nodes - 1) * (4e-6 + whole / ranks / 48e9);
    const double inside = 7 * (1.4e-6 + whole / 8 / 370e9);
    EXPECT_NEAR(seconds(program::Algorithm::hierarchical) / (across + inside), 1, 1e-4) << nodes;
    // In one ring of all ranks, the transfers that leave a node determine each round.
    const double ring = (ranks - 1) * (4e-6 + whole / ranks / 48e9);
    EXPECT_NEAR(seconds(program::Algorithm::ring) / ring, 1, 1e-4) << nodes;
  }
}

TEST(Costs, UnlikeDevicesHaveRowsOfTheirOwn) {
  const test::Rig rig(test::plan_of("ddp", 1, 32, 1, 1), test::small_model(2),
                      cluster::load_cluster("paper"));
  const Id o = first_op(rig, 0, model::SegmentKind::attention, program::Pass::forward);
  const auto row = rig.costs.seconds(0, o);
  ASSERT_EQ(row.size(), 32U);
  for (Id i = 0; i < 32; ++i)
    for (Id j = 0; j < 32; ++j)
      EXPECT_EQ(row[i] == row[j], rig.cluster.devices()[i].kind == rig.cluster.devices()[j].kind);
}

TEST(Costs, MeasuredSegmentsAndCollectivesAreUsed) {
  const model::ModelSpec model = test::small_model(2);
  const cluster::Cluster cluster = [] {
    cluster::Cluster c = test::fast(0);
    const Id hub = c.add_vertex("hub");
    for (int i = 0; i < 2; ++i) {
      const Id d = c.add_device("core" + std::to_string(i), 0, 0);
      c.connect(c.vertex_of(d), hub, "bus" + std::to_string(i), BytesPerSecond(1e9), Seconds(1e-6));
    }
    c.share_cores(2);
    return c;
  }();
  const link::LinkedProgram linked =
      link::link(methods::compile(test::plan_of("ddp", 1, 2, 1, 1), model));
  Profile profile;
  profile.ranks = 2, profile.threads_per_rank = 1, profile.cores = 2;
  for (model::SegmentKind kind : {model::SegmentKind::embedding, model::SegmentKind::attention,
                                  model::SegmentKind::mlp, model::SegmentKind::head})
    for (program::Pass pass : {program::Pass::forward, program::Pass::backward})
      profile.segments.push_back(
          {model.name, kind, pass, 1, model.seq_len, 1, program::DType::f32, 0.125});
  profile.updates = {{plan::Optimizer::adamw, program::DType::f32, 1e-3, 0.5}};
  profile.collectives = {{program::Move::all_reduce, 2, 1, 0.25},
                         {program::Move::all_reduce, 2, 1 << 30, 0.25}};
  const Costs costs(linked, model, cluster, {.profile = &profile});
  const program::Role& role = linked.program.roles[0];
  int seen[3] = {};
  for (Id o = 0; o < role.ops.size(); ++o) {
    if (std::holds_alternative<program::Compute>(role.ops[o].work)) {
      ++seen[0];
      EXPECT_EQ(costs.seconds(0, o, 0), 0.125);
    } else if (std::holds_alternative<program::Collective>(role.ops[o].work)) {
      ++seen[1];
      EXPECT_EQ(costs.seconds(0, o, 0), 0.25);
    } else if (std::holds_alternative<program::Update>(role.ops[o].work)) {
      ++seen[2];
      const auto n = elements_of(linked.program, role, *find(role.ops[o], program::Slot::param));
      EXPECT_NEAR(costs.seconds(0, o, 0), 0.5 + 1e-3 * static_cast<double>(n), 1e-9);
    }
  }
  for (int n : seen) EXPECT_GT(n, 0);
  EXPECT_TRUE(costs.calibrated());
  // Measured with one rank of two threads on the two cores; two such ranks take twice as long.
  profile.ranks = 1, profile.threads_per_rank = 2;
  const Costs crowded(linked, model, cluster, {.profile = &profile});
  EXPECT_EQ(crowded.seconds(0, 0, 0), 0.25);
}

TEST(Costs, TimesCountOnlyOnTheirKindOfDevice) {
  const cluster::Cluster cluster = cluster::load_cluster("paper");
  const link::LinkedProgram linked =
      link::link(methods::compile(test::plan_of("ddp", 1, 32, 1, 1), test::small_model(2)));
  const model::ModelSpec model = test::small_model(2);
  const Profile profile = {
      .updates = {{plan::Optimizer::adamw, program::DType::f32, 0, 0.5, "V100 PCIe 32GB"},
                  {plan::Optimizer::adamw, program::DType::f32, 0, 9, "A100 40GB"}}};
  const Costs costs(linked, model, cluster, {.profile = &profile});
  const Costs table(linked, model, cluster, {});
  const program::Role& role = linked.program.roles[0];
  int slow = 0;
  for (Id o = 0; o < role.ops.size(); ++o)
    if (std::holds_alternative<program::Update>(role.ops[o].work))
      for (Id i = 0; i < 32; ++i) {
        const bool v100 = cluster.kind_of(i).name == "V100 PCIe 32GB";
        EXPECT_EQ(costs.seconds(0, o, i), v100 ? 0.5 : table.seconds(0, o, i));
        slow += v100;
      }
  EXPECT_GT(slow, 0);
}

TEST(Costs, SendsOfARoleShareLinks) {
  // Two nodes of four behind one NIC each; four tensor-parallel ranks send to the next stage.
  cluster::Cluster c = test::fast(0);
  const Id top = c.add_vertex("fabric");
  for (Id node = 0; node < 2; ++node) {
    const Id inside = c.add_vertex("host" + std::to_string(node));
    for (int i = 0; i < 4; ++i) {
      const Id d = c.add_device(std::to_string(node) + "/" + std::to_string(i), 0, node);
      c.connect(c.vertex_of(d), inside, "bus" + c.devices()[d].name, BytesPerSecond(1e30),
                Seconds(0));
    }
    c.connect(inside, top, "nic" + std::to_string(node), BytesPerSecond(1e9), Seconds(1e-6));
  }
  for (int tp : {1, 4}) {
    plan::Plan plan = test::plan_of("1f1b", 2, 1, tp, 1);
    if (tp == 1) plan.placement.rank_to_device = {0, 4};
    const model::ModelSpec model = test::small_model(2);
    const link::LinkedProgram linked = link::link(methods::compile(plan, model));
    const Costs costs(linked, model, c, {.rank_to_device = plan.placement.rank_to_device});
    int sends = 0;
    for (Id r = 0; r < linked.program.roles.size(); ++r)
      for (Id o = 0; o < linked.program.roles[r].ops.size(); ++o)
        if (std::holds_alternative<program::Send>(linked.program.roles[r].ops[o].work)) {
          ++sends;
          const auto bytes = static_cast<double>(linked.roles[r].ops[o].bytes);
          EXPECT_NEAR(costs.seconds(r, o, 0), 2e-6 + tp * bytes / 1e9, 1e-15);
          EXPECT_EQ(costs.bytes_sent(r, o)[0], bytes);
        }
    EXPECT_EQ(sends, 2);
  }
}

TEST(Costs, SlowLinksSlowWhatCrossesThem) {
  const cluster::Cluster cluster = test::star(4, BytesPerSecond(1e9), Seconds(0));
  cluster::Disturbance d;
  d.slow_links = {{cluster.links()[2].name, 3.0}};
  const auto slow = link_slowdowns(d, cluster);
  const std::vector<std::vector<Id>> all = {{0, 1, 2, 3}};
  const double even =
      collective_seconds(cluster, program::Move::all_reduce, program::Algorithm::ring, 4000,
                         program::DType::f32, all)[0];
  const double slowed =
      collective_seconds(cluster, program::Move::all_reduce, program::Algorithm::ring, 4000,
                         program::DType::f32, all, {}, slow)[0];
  EXPECT_NEAR(slowed, 3 * even, 1e-12);
  d.slow_links = {{"cabel1", 3.0}};
  try {
    link_slowdowns(d, cluster);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cable1"));
  }
}

// Large groups compute equal rounds once. The result equals the sum over all rounds.
TEST(Costs, DistinctRoundsGiveTheSameTime) {
  const cluster::Cluster cluster = cluster::load_cluster("dgx-a100:16");
  std::vector<Id> all(128);
  for (Id i = 0; i < 128; ++i) all[i] = i;
  for (program::Algorithm algorithm : {program::Algorithm::ring, program::Algorithm::hierarchical,
                                       program::Algorithm::double_tree}) {
    const std::int64_t elements = 10'000'000;
    const double sum = collective_seconds(cluster, program::Move::all_reduce, algorithm, elements,
                                          program::DType::f32, {all})[0];
    const auto plan = schedule_on(cluster, program::Move::all_reduce, algorithm, elements,
                                  program::DType::f32, all);
    double exact = 0;
    std::vector<collectives::Transfer> round;
    for (int r = 0; r < plan->rounds(); ++r) {
      round.clear();
      plan->round(r, -1, round);
      std::vector<double> load(cluster.links().size(), 0.0);
      for (const collectives::Transfer& t : round)
        for (Id l : cluster.path(static_cast<Id>(t.from), static_cast<Id>(t.to)))
          load[l] += 4.0 * static_cast<double>(t.end - t.begin);
      double slowest = 0;
      for (const collectives::Transfer& t : round) {
        double seconds = 0;
        for (Id l : cluster.path(static_cast<Id>(t.from), static_cast<Id>(t.to)))
          seconds = std::max(seconds, load[l] / cluster.links()[l].bandwidth.value);
        slowest = std::max(
            slowest,
            seconds + cluster.latency(static_cast<Id>(t.from), static_cast<Id>(t.to)).value);
      }
      exact += slowest;
    }
    EXPECT_NEAR(sum, exact, 1e-4 * exact);
  }
}

// Two GPUs behind one NIC gain nothing from a hierarchical collective; eight with a NIC each do.
TEST(Costs, AutomaticBecomesTheFastestOnTheCluster) {
  auto algorithms = [](const char* platform, int ranks, const char* spec) {
    const model::ModelSpec model = model::load_model(spec, 0);
    const cluster::Cluster cluster = cluster::load_cluster(platform);
    plan::Plan plan = test::plan_of("ddp", 1, ranks, 1, 1);
    plan.exchange.bucket = Bytes(25e6);
    const program::Program automatic = methods::compile(plan, model);
    const program::Program chosen = methods::choose_collectives(automatic, cluster, {});
    const link::LinkedProgram linked = link::link(chosen), before = link::link(automatic);
    const Costs costs(linked, model, cluster, {}), old(before, model, cluster, {});
    std::vector<program::Algorithm> out;
    for (Id o = 0; o < chosen.roles[0].ops.size(); ++o)
      if (const auto* c = std::get_if<program::Collective>(&chosen.roles[0].ops[o].work)) {
        out.push_back(c->algorithm);
        EXPECT_EQ(costs.algorithm(0, o), c->algorithm);
        EXPECT_LE(costs.seconds(0, o, 0), old.seconds(0, o, 0) * (1 + 1e-9));
      }
    EXPECT_FALSE(out.empty());
    return out;
  };
  EXPECT_EQ(algorithms("paper", 32, "gpt2-124m").front(), program::Algorithm::ring);
  EXPECT_THAT(algorithms("dgx-a100:4", 32, "gpt2-124m"),
              testing::Each(program::Algorithm::hierarchical));
  EXPECT_THAT(algorithms("paper", 8, "gpt-tiny"),
              testing::Each(testing::Ne(program::Algorithm::ring)));
}

TEST(Costs, WhoMeetsAgreesOnTheAlgorithm) {
  const cluster::Cluster cluster = cluster::load_cluster("paper");
  const model::ModelSpec model = test::small_model(4);
  for (const auto& [name, strategy] : methods::strategies()) {
    SCOPED_TRACE(name);
    const methods::Combines& can = strategy.combines;
    plan::Plan plan = test::plan_of(name, can.pp ? 2 : 1, 2, can.tp ? 2 : 1, 4);
    plan.mesh.servers = can.servers ? 2 : 0;
    const program::Program program =
        methods::choose_collectives(methods::compile(plan, model), cluster, {});
    EXPECT_EQ(to_text(program::parse_program(to_text(program))), to_text(program));
    const link::LinkedProgram linked = link::link(program);
    for (const auto& event : linked.events) {
      auto algorithm = [&](const link::RoleOp& m) {
        const auto* c = std::get_if<program::Collective>(&program.roles[m.role].ops[m.op].work);
        return c ? c->algorithm : program::Algorithm::ring;
      };
      for (const link::RoleOp& m : event) {
        EXPECT_EQ(algorithm(m), algorithm(event[0]));
        EXPECT_NE(algorithm(m), program::Algorithm::automatic);
      }
    }
  }
}

TEST(Costs, TheUsersAlgorithmStays) {
  plan::Plan plan = test::plan_of("ddp", 1, 4, 1, 1);
  plan.exchange.collective = program::Algorithm::double_tree;
  const program::Program program = methods::compile(plan, test::small_model(2));
  EXPECT_EQ(to_text(methods::choose_collectives(program, test::fast(4), {})), to_text(program));
}

TEST(Costs, FewClassesForManyOps) {
  const test::Rig rig(test::plan_of("1f1b", 4, 2, 2, 16), model::load_model("gpt2-124m", 0),
                      cluster::load_cluster("dgx-a100:2"));
  std::size_t ops = 0;
  for (const program::Role& role : rig.linked.program.roles) ops += role.ops.size();
  EXPECT_GT(ops, 1000U);
  EXPECT_LT(rig.costs.classes(), 80U);
}

TEST(Costs, RefusesWhatDoesNotFit) {
  const model::ModelSpec model = test::small_model(2);
  const link::LinkedProgram linked =
      link::link(methods::compile(test::plan_of("ddp", 1, 4, 1, 1), model));
  auto message = [&](const cluster::Cluster& cluster, std::vector<Id> devices) {
    return test::message_of(
        [&] { const Costs costs(linked, model, cluster, {.rank_to_device = devices}); });
  };
  EXPECT_THAT(message(test::fast(3), {}), testing::HasSubstr("4 ranks do not fit"));
  EXPECT_THAT(message(test::fast(4), {0, 1, 2, 2}), testing::HasSubstr("to two ranks"));
  EXPECT_THAT(message(test::fast(4), {0, 1}), testing::HasSubstr("2 devices for 4 ranks"));
  cluster::Cluster no_f32;
  no_f32.add_kind({.name = "odd", .memory_bandwidth = BytesPerSecond(1)});
  for (int i = 0; i < 4; ++i) no_f32.add_device("d" + std::to_string(i), 0, 0);
  EXPECT_THAT(message(no_f32, {}), testing::HasSubstr("odd cannot compute"));
}

}  // namespace
}  // namespace rehearse::costs
