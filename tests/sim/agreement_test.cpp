// Tests that the executors agree. Without contention, every op of every rank starts and ends at the
// times of the dry run, in both fidelities, with and without disturbance. With shared links, fluid
// times are close to chunk times.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/errors.h"
#include "engine/program/rounds.h"
#include "tests/sim/runs.h"

namespace rehearse::sim {
namespace {

// Without bypass: SimGrid simulates every op.
constexpr SimOptions fluid = {.fidelity = Fidelity::fluid, .bypass = false};
constexpr SimOptions chunk = {.fidelity = Fidelity::chunk, .bypass = false};

struct Case {
  std::string name = {};
  plan::Plan plan = {};
  double tolerance = 1e-6;
  std::string software = "rehearse";

  /// Pipeline stages and servers get a separate cable for each pair, because they send to several
  /// ranks at a time.
  cluster::Cluster cluster() const {
    if (plan.mesh.pp > 1 || plan.mesh.servers > 0) return meshed(plan.mesh.world_size());
    cluster::Cluster out = switched(plan.mesh.world_size());
    if (plan.exchange.collective == program::Algorithm::in_network)
      out.let_sum(0, BytesPerSecond(9e9), Seconds(1e-6));
    return out;
  }
  model::ModelSpec model() const {
    model::ModelSpec spec = model::load_model("gpt-demo", 0);
    spec.software = software::load_software(software);
    return spec;
  }
};
std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

std::vector<Case> uncontended() {
  std::vector<Case> cases;
  auto add = [&](const std::string& name, plan::Plan plan, double tolerance = 1e-6) {
    plan.schedule.global_batch = plan.mesh.dp * plan.schedule.micro_batches * 2;
    cases.push_back({name, plan, tolerance});
  };
  for (const int n : {2, 4, 8}) {
    const std::string ranks = std::to_string(n);
    add("ddp_ring_" + ranks,
        {.method = "ddp", .mesh = {.dp = n}, .exchange = {.collective = program::Algorithm::ring}});
    add("ddp_halving_doubling_" + ranks,
        {.method = "ddp",
         .mesh = {.dp = n},
         .exchange = {.collective = program::Algorithm::halving_doubling}});
    add("ddp_double_tree_" + ranks,
        {.method = "ddp",
         .mesh = {.dp = n},
         .exchange = {.collective = program::Algorithm::double_tree}},
        0.02);
    add("ddp_in_network_" + ranks, {.method = "ddp",
                                    .mesh = {.dp = n},
                                    .exchange = {.collective = program::Algorithm::in_network}});
    add("zero2_ring_" + ranks, {.method = "zero2",
                                .mesh = {.dp = n},
                                .exchange = {.collective = program::Algorithm::ring}});
  }
  for (const int n : {3, 6, 7})
    add("ddp_ring_" + std::to_string(n),
        {.method = "ddp", .mesh = {.dp = n}, .exchange = {.collective = program::Algorithm::ring}});
  for (const char* method : {"gpipe", "1f1b", "zb-h1", "zb-h2"})
    for (const int stages : {2, 4})
      add(std::string(method) + "_" + std::to_string(stages),
          {.method = method, .mesh = {.pp = stages}, .schedule = {.micro_batches = 8}});
  // With two stages, boundaries and the sum of the tied embeddings would share a cable.
  add("pipedream_2bw_4",
      {.method = "pipedream-2bw", .mesh = {.pp = 4}, .schedule = {.micro_batches = 8}});
  add("interleaved_2", {.method = "interleaved",
                        .mesh = {.pp = 2},
                        .schedule = {.micro_batches = 4, .virtual_stages = 2}});
  // Checkpoints behind training, in every second step only.
  add("zero2_saving", {.method = "zero2",
                       .mesh = {.dp = 4},
                       .exchange = {.collective = program::Algorithm::ring},
                       .checkpoints = {.every = 2, .to = program::Medium::local_disk}});
  add("servers_sync", {.method = "ps-sync", .mesh = {.dp = 1, .servers = 1}});
  add("servers_of_machines",
      {.method = "byteps",
       .mesh = {.dp = 3, .servers = 2},
       .exchange = {.bucket = Bytes(200'000), .machines = {.credit = 2, .local_ranks = 1}}});
  add("servers_stale",
      {.method = "ps-ssp", .mesh = {.dp = 1, .servers = 1}, .schedule = {.staleness = 1}});
  add("servers_async", {.method = "ps-async", .mesh = {.dp = 1, .servers = 1}});
  add("servers_adding", {.method = "byteps-async", .mesh = {.dp = 1, .servers = 2}});
  add("tensor_2", {.method = "megatron",
                   .mesh = {.tp = 2},
                   .exchange = {.collective = program::Algorithm::ring}});
  // The same with a busy host, which waits for the device, and a library that adds latencies.
  for (std::size_t i = 0, n = cases.size(); i < n; ++i) {
    Case hosted = cases[i];
    hosted.name += "_hosted", hosted.software = "megatron-2021";
    cases.push_back(hosted);
  }
  add("ulysses_4", {.method = "ddp",
                    .mesh = {.order = "pp,dp,cp,tp", .cp = 4, .context = plan::Context::ulysses},
                    .exchange = {.bucket = Bytes(1e12), .collective = program::Algorithm::ring}});
  return cases;
}

class Uncontended : public testing::TestWithParam<Case> {};

TEST_P(Uncontended, DryFluidAndChunkAreOne) {
  const Bench bench(GetParam().plan, GetParam().cluster(), GetParam().model());
  const Times dry = bench.dry();
  EXPECT_LE(difference(dry, bench.sim(fluid).times), GetParam().tolerance);
  EXPECT_LE(difference(dry, bench.sim(chunk).times), GetParam().tolerance);
}

TEST_P(Uncontended, AreOneUnderTheSameDisturbance) {
  const Bench bench(GetParam().plan, GetParam().cluster(), GetParam().model());
  const cluster::Disturbance jitter = {.seed = 7,
                                       .compute_sigma = 0.1,
                                       .stragglers = {{.rank = 1, .factor = 1.5}},
                                       .link_sigma = 0.2};
  const Times dry = bench.dry(jitter);
  EXPECT_GT(difference(bench.dry(), dry), 0.005);
  EXPECT_LE(difference(dry, bench.sim(fluid, jitter).times), GetParam().tolerance);
  EXPECT_LE(difference(dry, bench.sim(chunk, jitter).times), GetParam().tolerance);
}

INSTANTIATE_TEST_SUITE_P(Programs, Uncontended, testing::ValuesIn(uncontended()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A client that is half as fast as the others gives up before its third step: the deadline is
// what a round of three steps takes without it. Its host then has nothing to issue either.
TEST(Rounds, DryFluidAndChunkGiveUpTheSame) {
  for (const char* software : {"rehearse", "megatron-2021"}) {
    Case one{.name = software,
             .plan = {.method = "fedavg",
                      .mesh = {.dp = 3, .servers = 1},
                      .schedule = {.global_batch = 6},
                      .exchange = {.averaging = {.local_steps = 3}}},
             .software = software};
    const double round = last_end(Bench(one.plan, one.cluster(), one.model()).dry());
    one.plan.exchange.averaging.deadline = Seconds(round);
    const Bench bench(one.plan, one.cluster(), one.model());
    const cluster::Disturbance slow = {.stragglers = {{.rank = 1, .factor = 2}}};
    const Times dry = bench.dry(slow);
    EXPECT_LE(difference(dry, bench.sim(fluid, slow).times), 1e-6) << software;
    EXPECT_LE(difference(dry, bench.sim(chunk, slow).times), 1e-6) << software;
    std::vector<double> lasted(3);
    for (const auto& [key, time] : dry)
      if (const auto [role, op, step, place] = key; role == 0 && place == 1)
        lasted[static_cast<std::size_t>(step)] +=
            program::stops(bench.linked.program.roles[role].ops[op]) ? time.second - time.first : 0;
    EXPECT_NEAR(lasted[1], lasted[0], 1e-9) << software;
    EXPECT_EQ(lasted[2], 0) << software;
  }
}

TEST(Contended, FluidStaysCloseToChunksOnSharedLinks) {
  // Four GPUs of a node share one NIC, and so do the node's two data-parallel groups.
  const cluster::Cluster cluster = cluster::load_cluster("paper-homogeneous");
  struct Shared {
    program::Algorithm algorithm = program::Algorithm::ring;
    double tolerance = 0.01;
  };
  for (const Shared shared :
       {Shared{program::Algorithm::ring, 0.01}, Shared{program::Algorithm::hierarchical, 0.03},
        Shared{program::Algorithm::double_tree, 1e-9}}) {
    plan::Plan plan = {.method = "megatron",
                       .mesh = {.dp = 16, .tp = 2},
                       .exchange = {.collective = shared.algorithm}};
    plan.schedule.global_batch = 32;
    const Bench bench(plan, cluster, "gpt2-124m");
    const double few = bench.sim(fluid).simulated.seconds;
    const double many = bench.sim(chunk).simulated.seconds;
    EXPECT_NEAR(few / many, 1, shared.tolerance);
  }
}

TEST(Contended, GathersUnderScattersStayCloseToChunks) {
  // ZeRO-3 over nodes with one NIC for two GPUs: hierarchical gathers and scatters overlap.
  plan::Plan plan = {.method = "zero3",
                     .mesh = {.dp = 32},
                     .exchange = {.collective = program::Algorithm::hierarchical}};
  plan.schedule.global_batch = 256;
  const Bench bench(plan, cluster::load_cluster("paper-homogeneous"), "bert-large");
  const double few = bench.sim(fluid).simulated.seconds;
  EXPECT_NEAR(few / bench.sim(chunk).simulated.seconds, 1, 0.03);
  EXPECT_GT(few, 1.02 * last_end(bench.dry()));  // they do share links
}

TEST(Contended, GroupsThatShareASwitchShareItsArithmetic) {
  // Two tensor ranks on each of four nodes: two groups sum through one switch at the same time.
  const auto seconds = [](double arithmetic) {
    plan::Plan plan = {.method = "megatron",
                       .mesh = {.dp = 4, .tp = 2},
                       .exchange = {.bucket = Bytes(1e12),  // sums after the backward pass
                                    .collective = program::Algorithm::in_network}};
    plan.schedule.global_batch = 4;
    cluster::Cluster cluster = switched(8, 2);
    cluster.let_sum(0, BytesPerSecond(arithmetic), Seconds(1e-6));
    const Bench bench(plan, cluster, "gpt2-124m");
    const double dry = last_end(bench.dry());
    EXPECT_NEAR(bench.sim(fluid).simulated.seconds, dry, 1e-6 * dry);
    EXPECT_NEAR(bench.sim(chunk).simulated.seconds, dry, 1e-6 * dry);
    return dry;
  };
  const double unlimited = seconds(1e15), each_has_its_link = seconds(25e9), shared = seconds(5e9);
  EXPECT_NEAR(each_has_its_link, unlimited, 1e-9 * unlimited);
  EXPECT_GT(shared, 1.5 * unlimited);
}

TEST(Torus, DryFluidAndChunkAreOne) {
  plan::Plan plan = {
      .method = "ddp", .mesh = {.dp = 27}, .exchange = {.collective = program::Algorithm::ring}};
  plan.schedule.global_batch = 27;
  cluster::Cluster cluster;
  const Id kind = cluster.add_kind(cluster::load_device("TPU v4"));
  for (Id i = 0; i < 27; ++i) cluster.add_device("tpu" + std::to_string(i), kind, i / 3);
  cluster.lay_torus({3, 3, 3}, BytesPerSecond(50e9), Seconds(1e-6));
  const Bench bench(plan, cluster, "gpt2-124m");
  EXPECT_LE(difference(bench.dry(), bench.sim(fluid).times), 1e-4);
  EXPECT_LE(difference(bench.dry(), bench.sim(chunk).times), 1e-4);
}

TEST(Contended, RingAttentionStaysCloseToChunks) {
  // In backward, the gradients of keys and values share a link with those before them.
  for (const plan::Context context : {plan::Context::ring, plan::Context::zigzag}) {
    plan::Plan plan = {.method = "ddp",
                       .mesh = {.order = "pp,dp,cp,tp", .cp = 4, .context = context},
                       .schedule = {.global_batch = 4},
                       .exchange = {.collective = program::Algorithm::ring}};
    const Bench bench(plan, switched(4, 1, 1e9), "gpt2-124m");
    const double few = bench.sim(fluid).simulated.seconds;
    EXPECT_NEAR(few / bench.sim(chunk).simulated.seconds, 1, 0.01);
    EXPECT_GT(few, 1.001 * last_end(bench.dry()));
  }
}

TEST(Contended, LanesOfOneRankShareItsLink) {
  // ZeRO-3 gathers weights while it scatters gradients. In the dry run each gets the whole link.
  plan::Plan plan = {
      .method = "zero3", .mesh = {.dp = 4}, .exchange = {.collective = program::Algorithm::ring}};
  plan.schedule.global_batch = 4;
  const Bench bench(plan, switched(4, 1, 1e9), "gpt2-124m");
  const double alone = last_end(bench.dry());
  EXPECT_GT(bench.sim(fluid).simulated.seconds, 1.05 * alone);
  EXPECT_GT(bench.sim(chunk).simulated.seconds, 1.05 * alone);
}

TEST(Chunk, ARingIsExactlyItsTransfers) {
  for (const int n : {2, 3, 8}) {
    plan::Plan plan = {.method = "ddp",
                       .mesh = {.dp = n},
                       .exchange = {.bucket = Bytes(1e12), .collective = program::Algorithm::ring}};
    plan.schedule.global_batch = n;
    const Bench bench(plan, switched(n));
    std::size_t rings = 0;
    for (const auto& event : bench.linked.events)
      rings += std::holds_alternative<program::Collective>(
          bench.linked.program.roles[event[0].role].ops[event[0].op].work);
    ASSERT_GT(rings, 0U);
    constexpr int steps = 2;
    const Bench::Sim run = bench.sim(chunk, {}, steps);
    EXPECT_EQ(run.simulated.transfers, static_cast<std::int64_t>(rings) * steps * 2 * n * (n - 1));
    EXPECT_EQ(run.simulated.flows, run.simulated.transfers);
  }
}

}  // namespace
}  // namespace rehearse::sim
