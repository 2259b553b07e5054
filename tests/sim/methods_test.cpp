// Runs every registered method on meshes of 1 to 8 ranks, with every technique that the method
// combines with. The bandwidth is so large that nothing contends. So the simulator must start and
// end each op of each rank at the dry run's times, in both fidelities, under jitter.
#include "tests/methods.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/sim/runs.h"

namespace rehearse::sim {
namespace {

model::ModelSpec small_model() {
  return model::build_model({.name = "small",
                             .layers = 8,
                             .hidden = 24,
                             .heads = 12,
                             .ffn = 48,
                             .vocab = 96,
                             .seq_len = 12});
}

struct Case {
  std::string name = {};
  plan::Plan plan = {};
  /// A busy host, whose waits are in the program, and a library that adds latencies.
  bool hosted = false;

  model::ModelSpec model() const {
    model::ModelSpec model = small_model();
    if (hosted) model.software = software::load_software("megatron-2021");
    // One latency for all hops: of a ring of unlike hops, fluid takes the slowest for each.
    model.software.library.in_node = model.software.library.across;
    return model;
  }
};

/// All meshes of a method on `ranks` ranks: plain, with single techniques, and with all together.
std::vector<Case> cases_of(const std::string& method, int ranks, test::Refusals& refusals) {
  std::vector<Case> cases;
  const methods::Combines& can = methods::strategies().at(method).combines;
  auto add = [&](plan::Plan plan, const std::string& what) {
    plan.method = method;
    plan.exchange.bucket = Bytes(20000);
    plan.exchange.collective = program::Algorithm::ring;
    if (can.servers) plan.mesh.servers = plan.mesh.dp > 2 ? 2 : 1;
    plan.schedule.global_batch = plan.mesh.dp * plan.schedule.micro_batches * 2;
    if (!plan.schedule.shares.empty())
      plan.schedule.global_batch =
          std::accumulate(plan.schedule.shares.begin(), plan.schedule.shares.end(), 0) *
          plan.schedule.micro_batches;
    if (refusals.refuses(plan, small_model())) return;
    cases.push_back({method + what, plan});
  };
  for (int pp = 1; pp <= (can.pp ? ranks : 1); ++pp)
    for (int tp = 1; tp <= (can.tp ? ranks : 1); ++tp) {
      if (ranks % (pp * tp) != 0) continue;
      plan::Plan plan = {.mesh = {.pp = pp, .dp = ranks / pp / tp, .tp = tp},
                         .schedule = {.micro_batches = pp > 1 ? 4 : 2}};
      if (can.low_rank) plan.exchange.low_rank.start = 2;
      if (can.freezes) plan.exchange.quantised.freeze = 2;
      const std::string mesh =
          " pp" + std::to_string(pp) + " tp" + std::to_string(tp) + " of " + std::to_string(ranks);
      add(plan, mesh);
      for (int zero = 1; zero <= can.max_zero; ++zero)
        plan.exchange.sharding.zero = zero, add(plan, mesh + " zero" + std::to_string(zero));
      plan.exchange.sharding.zero = 0;
      for (int i = 0; can.shares && i < plan.mesh.dp; ++i)
        plan.schedule.shares.push_back(1 + i % 3);
      if (!plan.schedule.shares.empty()) add(plan, mesh + " shares");
      plan.schedule.shares.clear();
      if (method == "adaptive" && plan.mesh.dp > 1) {
        // The layers take turns through all reductions and codings. The first node has three places
        // along dp and pp, later nodes have two; the tensor ranks of a place are on one node.
        plan::Plan mixed = plan;
        for (Id s = 0; s < small_model().segments.size(); ++s)
          mixed.exchange.sparse.layers.push_back(
              {0.1, plan::Reduction((s + 1) % 3), program::Coding(s / 3 % 3)});
        for (int rank = 0; rank < ranks; ++rank)
          mixed.placement.node_of.push_back(rank / tp < 3 ? 0 : 1 + (rank / tp - 3) / 2);
        add(mixed, mesh + " mixed");
        mixed.exchange.sparse.selector = program::Selector::threshold;
        mixed.exchange.sharding.zero = 2;
        add(mixed, mesh + " mixed threshold zero2");
      }
      plan.clip = can.clip;
      plan.schedule.recompute = can.recompute;
      plan.mesh.sequence_parallel = tp > 1;
      plan.schedule.recompute_unit = plan::RecomputeUnit::layer;
      plan.schedule.staleness = can.staleness ? 2 : 0;
      if (can.low_precision) plan.precision = program::DType::f16;
      const std::size_t before = cases.size();
      add(plan, mesh + " all at once");
      if (cases.size() == before) continue;  // refused
      cases.push_back({mesh + " all at once, hosted", cases.back().plan, true});
    }
  return cases;
}

class Methods : public testing::TestWithParam<std::string> {};

TEST_P(Methods, RunExactlyAsTheDryRunSays) {
  const cluster::Disturbance jitter = {.seed = 9, .compute_sigma = 0.1, .link_sigma = 0.1};
  const methods::Combines& can = methods::strategy_named(GetParam()).combines;
  const int steps = can.low_rank || can.freezes ? 4 : 2;  // they compress from step 2 on
  test::Refusals refusals;
  for (const int ranks : {1, 2, 3, 4, 6, 7, 8})
    for (const Case& one : cases_of(GetParam(), ranks, refusals)) {
      SCOPED_TRACE(one.name);
      const Bench bench(one.plan, switched(one.plan.mesh.world_size(), 2, 1e18), one.model());
      const Times dry = bench.dry(jitter, steps);
      EXPECT_LE(difference(dry, bench.sim({.bypass = false}, jitter, steps).times), 1e-6);
      EXPECT_LE(difference(dry, bench.sim({.fidelity = Fidelity::chunk}, jitter, steps).times),
                1e-6);
    }
  // The refusals: too few stages, or numbers of micro-batches that do not suit the stages.
  refusals.expect(GetParam(), {{"interleaved", 96}, {"pipedream-2bw", 9}});
}

INSTANTIATE_TEST_SUITE_P(Registry, Methods, testing::ValuesIn(test::all_methods()),
                         test::method_name);

}  // namespace
}  // namespace rehearse::sim
