// BytePS: bytes of workers and servers against closed forms, the published shares of mixed servers,
// how many partitions may be on their way, and refusals.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/link/link.h"
#include "engine/methods/lowering/exchange/partitions.h"
#include "engine/methods/strategy.h"
#include "tests/engine/rig.h"
#include "tests/engine/sent_bytes.h"
#include "tests/message_of.h"

namespace rehearse::methods {
namespace {

using testing::HasSubstr;

plan::Plan plan_of(int workers, int local, int servers, double partition = 20000) {
  return {.method = "byteps",
          .mesh = {.dp = workers, .servers = servers},
          .schedule = {.global_batch = workers},
          .exchange = {.bucket = Bytes(partition), .machines = {.local_ranks = local}}};
}

// A machine pushes and pulls all gradients once, whatever the number of its ranks; inside it, each
// rank sends (L-1)/L of them in the reduce-scatter and again in the all-gather.
TEST(BytePs, SendsAllGradientsOnceForEachMachine) {
  const model::ModelSpec model = test::small_model(8);
  const std::int64_t bytes = parameters_of(model) * 4;
  for (const int local : {1, 2, 4, 8})
    for (const int servers : {0, 1, 2, 3}) {
      const int machines = 8 / local;
      if (servers == 0 && machines > 1) continue;
      for (const double partition : {4e6, 20000.0}) {
        const std::int64_t inside = 2 * machines * (local - 1) * bytes,
                           across = servers > 0 ? 2 * machines * bytes : 0;
        EXPECT_EQ(
            test::sent_bytes(link::link(compile(plan_of(8, local, servers, partition), model))),
            inside + across)
            << local << ' ' << servers;
      }
    }
}

std::vector<double> loads_of(const plan::Plan& plan, const model::ModelSpec& model) {
  std::vector<double> loads(static_cast<std::size_t>(plan.mesh.servers));
  for (const Partition& p : partitions_of(plan, model))
    loads[static_cast<std::size_t>(p.server)] += static_cast<double>(p.end - p.begin);
  const double all = std::accumulate(loads.begin(), loads.end(), 0.0);
  for (double& load : loads) load /= all;
  return loads;
}

// With M bytes of gradients, a machine's NIC sends what other machines' servers sum of its
// gradients, and the sums of its own server to the others: M - g + (n-1) g. A server on a node of
// its own sends n c. The published shares make both 2n(n-1) / (n^2 + kn - 2k) M.
TEST(BytePs, MixedServersKeepAllNicsEquallyBusy) {
  const model::ModelSpec model = test::small_model(12);
  for (const int n : {2, 3, 5, 8})
    for (int k = 1; k < n; ++k) {
      plan::Plan plan = plan_of(n, 1, n + k, 400);
      plan.exchange.machines.server_placement = plan::ServerPlacement::mixed;
      plan = prepare(plan, model);
      const std::vector<double> loads = loads_of(plan, model);
      const double together = n * n + k * n - 2 * k, most = 2.0 * n * (n - 1) / together;
      for (int s = 0; s < n + k; ++s) {
        const double load = loads[static_cast<std::size_t>(s)];
        EXPECT_NEAR(load, (s < n ? n - k : 2.0 * (n - 1)) / together, 0.01);
        EXPECT_NEAR(s < n ? 1 + (n - 2) * load : n * load, most, 0.01 * n) << n << ' ' << k;
      }
    }
}

TEST(BytePs, OtherServersHaveEqualShares) {
  for (const double load :
       loads_of(prepare(plan_of(4, 1, 5, 400), test::small_model(12)), test::small_model(12)))
    EXPECT_NEAR(load, 0.2, 0.005);
}

TEST(BytePs, PartitionsCoverEachBucketAndDivideAmongTheRanksOfAMachine) {
  const model::ModelSpec model = test::small_model(4);
  for (const int local : {1, 3}) {
    const plan::Plan plan = prepare(plan_of(6, local, 2, 1001), model);
    std::map<Id, std::int64_t> covered;
    std::int64_t elements = 0;
    for (const Partition& p : partitions_of(plan, model)) {
      EXPECT_EQ(p.begin, covered[p.bucket]);
      EXPECT_EQ((p.end - p.begin) % local, 0);
      EXPECT_LE(4 * (p.end - p.begin), 1001 + 4 * local);
      covered[p.bucket] = p.end;
      elements += p.end - p.begin;
    }
    EXPECT_GE(elements, parameters_of(model));
    EXPECT_EQ(covered.size(), model.segments.size() + 1);  // one more for the tied table
  }
}

/// By partition: its first op and its pull, in program order.
std::vector<std::pair<Id, Id>> exchanges_of(const program::Role& worker) {
  std::vector<std::pair<Id, Id>> out;
  for (Id o = 0; o < worker.ops.size(); ++o)
    if (const auto* work = std::get_if<program::Collective>(&worker.ops[o].work)) {
      if (work->move == program::Move::reduce_scatter) out.emplace_back(o, none);
      if (work->move == program::Move::broadcast) out.back().second = o;
    }
  return out;
}

TEST(BytePs, ACreditLimitsWhatIsOnItsWay) {
  const model::ModelSpec model = test::small_model(4);
  for (const int credit : {1, 3}) {
    plan::Plan plan = plan_of(4, 2, 2, 2000);
    plan.exchange.machines.credit = credit;
    const program::Program program = compile(plan, model);
    const std::vector<Partition> partitions = partitions_of(prepare(plan, model), model);
    std::int64_t largest = 0;
    for (const Partition& p : partitions) largest = std::max(largest, p.end - p.begin);
    const program::Role& worker = program.roles[0];
    const auto exchanges = exchanges_of(worker);
    ASSERT_EQ(exchanges.size(), partitions.size());
    std::vector<bool> back(partitions.size());
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
      for (const program::After& after : worker.ops[exchanges[i].first].after)
        for (std::size_t k = 0; k < i; ++k)
          if (after.throttle && after.op == exchanges[k].second) back[k] = true;
      std::int64_t open = 0;
      for (std::size_t k = 0; k <= i; ++k)
        if (!back[k]) open += partitions[k].end - partitions[k].begin;
      EXPECT_LE(open, credit * largest);
    }
    EXPECT_GT(std::ranges::count(back, true), 0);
  }
  for (const program::Role& role : compile(plan_of(4, 2, 2, 2000), model).roles)
    for (const program::Op& op : role.ops)
      for (const program::After& after : op.after) EXPECT_FALSE(after.throttle);
}

TEST(BytePs, ExchangesPartitionsInThePlansOrder) {
  const model::ModelSpec model = test::small_model(4);
  plan::Plan plan = prepare(plan_of(4, 1, 2), model);
  const std::vector<Partition> partitions = partitions_of(plan, model);
  for (Id i = static_cast<Id>(partitions.size()); i-- > 0;)
    plan.exchange.machines.push_order.push_back(i);
  const program::Program program = compile(plan, model);
  link::link(program);
  std::size_t next = partitions.size();
  for (const program::Op& op : program.roles[0].ops)
    if (const auto* work = std::get_if<program::Collective>(&op.work);
        work != nullptr && work->move == program::Move::reduce) {
      const Partition& p = partitions[--next];
      EXPECT_EQ(program.roles[0].views[op.refs[0].view].name, "G." + p.name);
    }
  EXPECT_EQ(next, 0U);
  plan.exchange.machines.push_order.pop_back();
  EXPECT_THAT(test::message_of([&] { compile(plan, model); }), HasSubstr("must name each of the"));
}

TEST(BytePs, AForwardWaitsForTheUpdatesOfItsOwnLayerOnly) {
  const model::ModelSpec model = test::small_model(4);
  const program::Program program = compile(plan_of(4, 2, 2), model);
  const program::Role& worker = program.roles[0];
  bool update_since = false;
  int forwards = 0;
  for (const program::Op& op : worker.ops) {
    if (std::holds_alternative<program::Update>(op.work)) {
      EXPECT_EQ(op.shift, 1);
      update_since = true;
    }
    if (const auto* c = std::get_if<program::Compute>(&op.work);
        c != nullptr && c->pass == program::Pass::forward) {
      EXPECT_TRUE(update_since || model.segments[c->segment].groups.empty());
      update_since = false;
      ++forwards;
    }
  }
  EXPECT_EQ(forwards, static_cast<int>(model.segments.size()));
}

TEST(BytePs, RefusesWhatDoesNotFit) {
  const model::ModelSpec model = test::small_model(2);
  const auto refusal = [&](plan::Plan plan, const auto& change) {
    change(plan);
    return test::message_of([&] { compile(plan, model); });
  };
  EXPECT_EQ(refusal(plan_of(4, 3, 1), [](plan::Plan&) {}),
            "method.local_ranks: 3: must divide the 4 workers; nearest: 2");
  EXPECT_EQ(refusal(plan_of(4, 2, 3),
                    [](plan::Plan& p) {
                      p.exchange.machines.server_placement = plan::ServerPlacement::colocated;
                    }),
            "method.servers: 3: colocated servers are one for each machine; nearest: 2");
  EXPECT_EQ(refusal(plan_of(4, 2, 4),
                    [](plan::Plan& p) {
                      p.exchange.machines.server_placement = plan::ServerPlacement::mixed;
                    }),
            "method.servers: 4: of mixed servers, one is on each of the 2 machines and fewer than "
            "that are on nodes of their own; nearest: 3");
  EXPECT_EQ(refusal(plan_of(2, 2, 0), [](plan::Plan& p) { p.exchange.machines.credit = 3; }),
            "method.credit: 3: limits what is on its way to servers, and there are none; leave it "
            "out");
  EXPECT_THAT(refusal(plan_of(2, 1, 9, 1e9), [](plan::Plan&) {}),
              HasSubstr("method.servers: 9: 2 of them would sum nothing, as there are 7 partitions "
                        "of at most 1 GB; nearest: 7, or a smaller method.bucket"));
  EXPECT_THAT(refusal(plan_of(4, 2, 2),
                      [](plan::Plan& p) {
                        p.exchange.machines.server_placement = plan::ServerPlacement::colocated;
                        p.placement.node_of = {0, 0, 1, 1, 1, 0};
                      }),
              HasSubstr("method.server_placement: colocated: rank 4, the server of machine 0, is "
                        "on node 1, and the workers are on node 0"));
  EXPECT_EQ(refusal({.method = "ddp", .mesh = {.dp = 2}, .schedule = {.global_batch = 2}},
                    [](plan::Plan& p) { p.exchange.machines.local_ranks = 2; }),
            "method.local_ranks: 2 does not combine with method \"ddp\": its servers do not sum "
            "over machines, as those of byteps do");
}

}  // namespace
}  // namespace rehearse::methods
