// The host's lane against closed forms. On the test cluster a kernel takes 1 us, so a device takes
// as many microseconds as it launches kernels, and the host f or b times as many.
#include "engine/costs/device/host_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/execution/dry_run/fold.h"
#include "engine/model/launches.h"
#include "tests/engine/rig.h"
#include "tests/methods.h"

namespace rehearse::costs {
namespace {

using program::Pass;
using software::HostWait;

constexpr double us = 1e-6;

model::ModelSpec model_with(const software::Software& how, int layers = 4) {
  model::ModelSpec model = test::small_model(layers);
  model.software = how;
  return model;
}
software::Software host(double forward, double backward, std::vector<HostWait> waits = {}) {
  software::Software how;
  how.forward_issue = Seconds(forward * us), how.backward_issue = Seconds(backward * us);
  how.waits = std::move(waits);
  return how;
}

/// A program with the host's lane, and its dry run.
struct Hosted {
  Hosted(const plan::Plan& plan, const software::Software& how, int ranks)
      : model(model_with(how)),
        cluster(test::fast(ranks)),
        linked(link::link(with_host_lane(methods::compile(plan, model), model))),
        costs(linked, model, cluster, {}) {}

  double seconds(int steps = 1) {
    recording.intervals.clear();
    return dry_run(linked, costs, cluster::Disturber({}, linked.program.world_size), steps,
                   recording)
        .seconds;
  }
  /// Start and end of an op of the first step, on the role's first rank.
  execution::Interval at(Id role, Id op) const {
    for (const execution::Interval& i : recording.intervals)
      if (i.role == role && i.op == op && i.step == 0 && i.place == 0) return i;
    ADD_FAILURE() << "op " << op << " did not run";
    return {};
  }
  const std::vector<program::Op>& ops(Id role) const { return linked.program.roles[role].ops; }

  model::ModelSpec model;
  cluster::Cluster cluster;
  link::LinkedProgram linked;
  Costs costs;
  execution::Recording recording = {};
};

/// Kernels that a role launches: of forward, of backward, and one for each other op.
struct Kernels {
  double forward = 0, backward = 0, others = 0;
  int updates = 0;
  double all() const { return forward + backward + others; }
};
Kernels kernels_of(const Hosted& h, Id role = 0) {
  Kernels k;
  for (const program::Op& op : h.ops(role)) {
    if (const auto* c = std::get_if<program::Compute>(&op.work))
      (c->pass == Pass::backward ? k.backward : k.forward) += static_cast<double>(
          launches_of(h.model, c->segment, c->pass, c->samples, 1, program::DType::f32).size());
    else if (!std::holds_alternative<program::Issue>(op.work))
      k.others += 1, k.updates += std::holds_alternative<program::Update>(op.work);
  }
  return k;
}

plan::Plan alone(double bucket = 1e12) {
  plan::Plan plan = test::plan_of("ddp", 1, 1, 1, 1);
  plan.exchange.bucket = Bytes(bucket);
  return plan;
}

TEST(HostLane, OfASlowHostTheStepIsTheSumOfItsIssues) {
  Hosted h(alone(), host(3, 3), 1);
  const double issues = 3 * us * kernels_of(h).all();
  // The host ends last: it issues the last op while that op runs.
  EXPECT_NEAR(h.seconds(1), issues, 1e-12);
  EXPECT_NEAR(h.seconds(4), 4 * issues, 1e-12);
  // Each op starts when the host has issued all before it, and the last ends after its own kernels.
  const Id last = static_cast<Id>(h.ops(0).size()) - 1;
  const double before = issues - 3 * us;  // an update is one kernel
  EXPECT_NEAR(h.at(0, last).start, before, 1e-12);
  EXPECT_NEAR(h.at(0, last).end, before + 1 * us, 1e-12);
}

TEST(HostLane, OfAFastHostTheStepIsTheSumOfItsKernels) {
  const Hosted none(alone(), {}, 1);
  Hosted h(alone(), host(0.5, 0.25), 1);
  const double device = us * kernels_of(h).all();
  // The first op starts at once, because the host issues its kernels while they run.
  EXPECT_NEAR(h.seconds(1), device, 1e-12);
  EXPECT_NEAR(h.seconds(4), 4 * device, 1e-12);
  EXPECT_EQ(kernels_of(none).all(), kernels_of(h).all());
}

TEST(HostLane, EachPassHasItsOwnRate) {
  Hosted h(alone(), host(2, 5), 1);
  const Kernels k = kernels_of(h);
  EXPECT_GT(k.forward, 0);
  EXPECT_NEAR(h.seconds(1), us * (2 * k.forward + 5 * k.backward + 2 * k.others), 1e-12);
}

TEST(HostLane, AMicroBatchAndAnUpdateHaveWorkOfTheirOwn) {
  software::Software how = host(3, 3);
  how.microbatch = Seconds(100 * us), how.update = Seconds(1000 * us);
  plan::Plan plan = alone(20000);
  plan.schedule.micro_batches = 3, plan.schedule.global_batch = 3;
  Hosted h(plan, how, 1);
  const Kernels k = kernels_of(h);
  ASSERT_GT(k.updates, 1);  // the work of an update is that of the first
  EXPECT_NEAR(h.seconds(1), us * (3 * k.all() + 3 * 100 + 1000), 1e-12);
}

/// Forward runs ahead of the device, backward is slower than it:
///
///   host    |fff|bbb bbb bbb |          |fff|      |bbb bbb bbb |     after a wait for the loss
///   device  |F F F F|B   B   |          |F F F F F F|B   B   B   |
TEST(HostLane, AWaitForTheLossEndsTheHostsLead) {
  Hosted free(alone(), host(0.5, 3), 1), waits(alone(), host(0.5, 3, {HostWait::loss}), 1);
  const Kernels k = kernels_of(free);
  ASSERT_GT(3 * k.backward, k.forward);  // so the lead is used up before the updates
  EXPECT_NEAR(free.seconds(1), us * (0.5 * k.forward + 3 * k.backward + k.others), 1e-12);
  EXPECT_NEAR(waits.seconds(1), us * (k.forward + 3 * k.backward + k.others), 1e-12);
}

TEST(HostLane, AWaitBeforeTheUpdateStartsItsWorkAfterTheGradients) {
  // Two ranks, whose all-reduces take no time here, and a host with 50 us to do in the first
  // update.
  const auto seconds = [](std::vector<HostWait> waits) {
    software::Software how = host(0.1, 0.1, std::move(waits));
    how.update = Seconds(50 * us);
    plan::Plan plan = test::plan_of("ddp", 1, 2, 1, 1);
    plan.exchange.bucket = Bytes(1e12);
    Hosted h(plan, how, 2);
    const double all = h.seconds(1);
    double gradients = 0;
    for (const execution::Interval& i : h.recording.intervals)
      if (std::holds_alternative<program::Collective>(h.ops(i.role)[i.op].work))
        gradients = std::max(gradients, i.end);
    return std::pair{all, gradients};
  };
  const auto [free, reduced] = seconds({});
  const auto [waits, again] = seconds({HostWait::update});
  EXPECT_NEAR(reduced, again, 1e-12);
  EXPECT_NEAR(free, reduced + us, 1e-9);  // the update's kernel
  EXPECT_NEAR(waits, reduced + 50.1 * us, 1e-9);
}

TEST(HostLane, AWaitBeforeTheUpdateIsForWhatTheUpdateNeedsAlsoInItsOwnLane) {
  // Alone, the norm that decides about the update is a kernel of the same lane, and no op waits.
  const auto seconds = [](std::vector<HostWait> waits) {
    software::Software how = host(0.1, 0.1, std::move(waits));
    how.update = Seconds(50 * us);
    plan::Plan plan = alone();
    plan.clip = true;
    Hosted h(plan, how, 1);
    const double all = h.seconds(1);
    double norm = 0;
    for (const execution::Interval& i : h.recording.intervals)
      if (std::holds_alternative<program::Kernel>(h.ops(i.role)[i.op].work))
        norm = std::max(norm, i.end);
    return std::pair{all, norm};
  };
  const auto [free, ready] = seconds({});
  const auto [waits, again] = seconds({HostWait::update});
  EXPECT_NEAR(ready, again, 1e-12);
  EXPECT_GT(ready, 60 * us);  // the work of the update is hidden behind what comes before it
  EXPECT_NEAR(free, ready + us, 1e-9);
  EXPECT_NEAR(waits, ready + 50.1 * us, 1e-9);
}

TEST(HostLane, AWaitForATransferStartsTheNextIssueAtItsEnd) {
  // In stage 1 the host has issued all of forward by the time that stage 0 has sent.
  for (const bool wait : {false, true}) {
    Hosted h(test::plan_of("1f1b", 2, 1, 1, 1),
             host(2, 2, wait ? std::vector{HostWait::transfers} : std::vector<HostWait>{}), 2);
    h.seconds(1);
    Id recv = none;
    std::vector<Id> forward;
    for (Id o = 0; o < h.ops(1).size(); ++o) {
      const auto* c = std::get_if<program::Compute>(&h.ops(1)[o].work);
      if (std::holds_alternative<program::Recv>(h.ops(1)[o].work) && recv == none) recv = o;
      if (c != nullptr && c->pass == Pass::forward) forward.push_back(o);
    }
    ASSERT_NE(recv, none);
    ASSERT_GE(forward.size(), 3U);
    const double arrived = h.at(1, recv).end;
    const double first = h.at(1, forward[0]).end - h.at(1, forward[0]).start;  // its kernels
    EXPECT_NEAR(h.at(1, forward[0]).start, arrived, 1e-12);
    EXPECT_NEAR(h.at(1, forward[1]).start, arrived + (wait ? 2 : 1) * first, 1e-12);
  }
}

TEST(HostLane, ATransferTakesTimeOfItsOwn) {
  software::Software how = host(2, 2);
  how.transfer = Seconds(100 * us);
  const Hosted h(test::plan_of("1f1b", 2, 1, 1, 2), how, 2);
  int transfers = 0;
  double issued = 0;
  for (const program::Op& op : h.ops(1)) {
    transfers += std::holds_alternative<program::Send>(op.work) ||
                 std::holds_alternative<program::Recv>(op.work);
    if (const auto* issue = std::get_if<program::Issue>(&op.work)) issued += issue->seconds;
  }
  EXPECT_EQ(transfers, 4);  // two micro-batches: receives an activation, sends a gradient
  EXPECT_NEAR(issued, 2 * us * kernels_of(h, 1).all() + 4 * 100 * us, 1e-9);
}

TEST(HostLane, OfAHostThatTakesNoTimeIsNotThere) {
  software::Software how = host(0, 0, {HostWait::loss, HostWait::transfers, HostWait::update});
  how.library.launch = how.library.across = Seconds(1 * us);
  for (const std::string& method : test::all_methods()) {
    plan::Plan plan = test::plan_of(method, 1, 2, 1, 2);
    if (methods::strategy_named(method).combines.pp) plan.mesh.pp = 2;
    if (methods::strategy_named(method).combines.servers) plan.mesh.servers = 1;
    const model::ModelSpec model = model_with(how);
    const program::Program before = methods::compile(plan, model);
    const program::Program after = with_host_lane(before, model);
    EXPECT_EQ(to_text(after), to_text(before)) << method;
  }
}

bool has_host(const program::Role& role) {
  return std::any_of(role.lanes.begin(), role.lanes.end(),
                     [](const program::Lane& lane) { return lane.name == "host"; });
}
bool by_arrival(const program::Role& role) {
  return role.free_running || std::any_of(role.ops.begin(), role.ops.end(), [](const auto& op) {
           return std::holds_alternative<program::Put>(op.work) ||
                  std::holds_alternative<program::Take>(op.work);
         });
}

class HostLaneOf : public testing::TestWithParam<std::string> {};

/// Every method with every technique: the host neither deadlocks nor lets an op read what is not
/// written yet, keeps what the program does, and never makes a step shorter.
TEST_P(HostLaneOf, LinksAndOnlyDelays) {
  const methods::Combines& can = methods::strategy_named(GetParam()).combines;
  const software::Software how = software::load_software("megatron-2021");
  ASSERT_TRUE(how.busy_host());
  const model::ModelSpec model = model_with(how);
  test::Refusals refusals;
  int seen = 0;
  for (const int pp : {1, 2, 4})
    for (const int tp : {1, 2})
      for (const int technique : {0, 1, 2, 3, 4}) {
        if ((pp > 1 && !can.pp) || (tp > 1 && !can.tp)) continue;
        plan::Plan plan = test::plan_of(GetParam(), pp, 2, tp, 4);
        plan.mesh.servers = can.servers ? 1 : 0;
        if (technique == 1) plan.schedule.recompute = can.recompute, plan.clip = can.clip;
        if (technique == 2 && can.recompute)
          plan.schedule.recompute = true, plan.schedule.recompute_unit = plan::RecomputeUnit::layer,
          plan.mesh.sequence_parallel = tp > 1;
        if (technique == 3) plan.exchange.sharding.zero = can.max_zero;
        if (technique == 4 && can.low_precision) plan.precision = program::DType::f16;
        if (refusals.refuses(plan, model)) continue;
        SCOPED_TRACE(testing::Message() << "pp " << pp << " tp " << tp << " " << technique);
        const program::Program bare = methods::compile(plan, model);
        const program::Program hosted = with_host_lane(bare, model);
        const link::LinkedProgram linked = link::link(hosted), plain = link::link(bare);
        for (Id r = 0; r < hosted.roles.size(); ++r) {
          EXPECT_EQ(has_host(hosted.roles[r]), !by_arrival(bare.roles[r]));
          // The host does not let a receive begin early, so less may be alive at a time. Where that
          // changes which values share memory, the plan may pack them a little worse.
          EXPECT_LE(static_cast<double>(linked.memory[r].total()),
                    1.02 * static_cast<double>(plain.memory[r].total()));
          const auto issues = std::count_if(
              hosted.roles[r].ops.begin(), hosted.roles[r].ops.end(), [](const program::Op& op) {
                return std::holds_alternative<program::Issue>(op.work);
              });
          EXPECT_EQ(hosted.roles[r].ops.size() - static_cast<std::size_t>(issues),
                    bare.roles[r].ops.size());
          if (by_arrival(bare.roles[r])) {
            EXPECT_EQ(issues, 0);
          }
        }
        const cluster::Cluster cluster =
            test::star(plan.mesh.world_size(), BytesPerSecond(1e9), Seconds(2e-6));
        const auto seconds = [&](const link::LinkedProgram& of) {
          const Costs costs(of, model, cluster, {});
          execution::Recording trace;
          return dry_run(of, costs, cluster::Disturber({}, of.program.world_size), 3, trace)
              .seconds;
        };
        EXPECT_GE(seconds(linked), seconds(plain) * (1 - 1e-12));
        ++seen;
      }
  EXPECT_GT(seen, 0);
}
INSTANTIATE_TEST_SUITE_P(Registry, HostLaneOf, testing::ValuesIn(test::all_methods()),
                         test::method_name);

}  // namespace
}  // namespace rehearse::costs
