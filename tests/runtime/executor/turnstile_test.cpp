// Tests the order in which ranks issue the ops that meet other ranks, over all methods and their
// combinations: it is one order for every pair of ranks, and it comes after everything that an op
// waits for.
#include "runtime/executor/lanes/turnstile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <thread>

#include "engine/methods/strategy.h"
#include "runtime/executor/lanes/lane_runner.h"
#include "runtime/executor/operations/forward_slice.h"
#include "tests/methods.h"
#include "tests/runtime/conformance.h"

namespace rehearse::runtime {
namespace {

/// The smallest plan of a method, and those with more axes, stages and micro-batches that it takes.
std::vector<link::LinkedProgram> programs_of(const std::string& method) {
  std::vector<link::LinkedProgram> programs;
  const auto add = [&](const plan::Plan& plan) {
    try {
      programs.push_back(link::link(program_of(conformance_job(plan, "", 1))));
    } catch (const InputError&) {  // the method does not combine so
    }
  };
  const plan::Plan smallest = smallest_plan(method);
  add(smallest);
  EXPECT_EQ(programs.size(), 1U) << method;
  for (const int pp : {1, 2})
    for (const int dp : {1, 2, 4})
      for (const int tp : {1, 2})
        for (const int micro_batches : {1, 4}) {
          plan::Plan plan = smallest;
          plan.mesh.pp = pp, plan.mesh.dp = dp, plan.mesh.tp = tp;
          plan.schedule.micro_batches = micro_batches;
          plan.schedule.global_batch = 16;
          if (test::allowed(plan, conformance_job(smallest, "", 1).model)) add(plan);
        }
  return programs;
}

class IssueOrder : public testing::TestWithParam<std::string> {};

TEST_P(IssueOrder, IsTheSameForEveryPairOfRanks) {
  for (const link::LinkedProgram& linked : programs_of(GetParam()))
    for (const bool evaluates : {false, true}) {
      const std::vector<std::vector<bool>> slices = forward_slice(linked);
      // By role: its turns as events, which its peers know too.
      std::vector<std::vector<Id>> events;
      for (Id role = 0; role < linked.program.roles.size(); ++role) {
        std::vector<Id>& of = events.emplace_back();
        for (const Turn& turn :
             evaluates ? turns_of(linked, role, slices[role]) : turns_of(linked, role))
          of.push_back(linked.event_of[role][turn.op]);
      }
      for (Id a = 0; a < events.size(); ++a)
        for (Id b = a + 1; b < events.size(); ++b) {
          const std::set<Id> of_a(events[a].begin(), events[a].end()),
              of_b(events[b].begin(), events[b].end());
          std::vector<Id> seen_by_a, seen_by_b;
          std::ranges::copy_if(events[a], std::back_inserter(seen_by_a),
                               [&](Id event) { return of_b.contains(event); });
          std::ranges::copy_if(events[b], std::back_inserter(seen_by_b),
                               [&](Id event) { return of_a.contains(event); });
          EXPECT_EQ(seen_by_a, seen_by_b) << "roles " << a << " and " << b;
        }
    }
}

TEST_P(IssueOrder, ComesAfterLanesWaitsAndHazards) {
  for (const link::LinkedProgram& linked : programs_of(GetParam())) {
    if (linked.mailboxes) continue;  // lanes by arrival have no order
    for (Id role = 0; role < linked.program.roles.size(); ++role) {
      // Where each op stands: its macro-iteration in step 0, its place in it.
      std::vector<std::pair<int, std::size_t>> place(linked.program.roles[role].ops.size());
      for (std::size_t at = 0; at < linked.order.size(); ++at)
        if (linked.order[at].role == role)
          place[linked.order[at].op] = {linked.order[at].offset, at};
      for (const TaskLane& lane : lanes_of(linked, role))
        for (std::size_t i = 0; i < lane.tasks.size(); ++i) {
          const Task& task = lane.tasks[i];
          const auto& own = place[task.op];
          for (const link::Wait& wait : task.waits) {
            auto other = place[wait.op];
            other.first -= wait.lag;
            EXPECT_LT(other, own) << "op " << task.op << " waits for op " << wait.op;
          }
          if (i == 0) continue;
          // Of iteration n of the lane, ops serve the steps n - shift.
          auto previous = place[lane.tasks[i - 1].op];
          previous.first -= lane.tasks[i - 1].shift - task.shift;
          EXPECT_LT(previous, own) << "op " << task.op << " follows on its lane";
        }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, IssueOrder, testing::ValuesIn(test::all_methods()),
                         test::method_name);

TEST(Turnstile, LetsOpsThroughInOrderOverSteps) {
  // Op 1 serves the step before; in iteration 0 it has none.
  Turnstile turnstile({{.op = 0}, {.op = 1, .offset = 1}, {.op = 2}});
  turnstile.begin_run(0, 2);
  std::vector<std::pair<Id, std::int64_t>> seen;
  const auto go = [&](Id op) {
    for (std::int64_t step = 0; step < 2; ++step)
      if (turnstile.enter(op, step)) {
        seen.emplace_back(op, step);
        turnstile.leave();
      }
  };
  std::thread last([&] { go(2); }), middle([&] { go(1); });
  go(0);
  last.join();
  middle.join();
  EXPECT_EQ(seen, (std::vector<std::pair<Id, std::int64_t>>{
                      {0, 0}, {2, 0}, {0, 1}, {1, 0}, {2, 1}, {1, 1}}));
}

TEST(Turnstile, WithoutTurnsCountsNoSteps) {
  Turnstile turnstile({});
  turnstile.begin_run(0, std::numeric_limits<std::int64_t>::max());  // for ever, step by step
  EXPECT_TRUE(turnstile.enter(0, 7));
  turnstile.leave();
  turnstile.lower_end(8);
}

TEST(Turnstile, PassesStepsThatTheRunDoesNotHave) {
  Turnstile turnstile({{.op = 0}, {.op = 1}});
  turnstile.begin_run(0, 100);
  ASSERT_TRUE(turnstile.enter(0, 0));
  turnstile.leave();
  // Op 1 of step 0 has its turn; op 0 of step 1 waits for it until the run turns out to end.
  std::thread waits([&] { EXPECT_FALSE(turnstile.enter(0, 1)); });
  turnstile.lower_end(1);
  waits.join();
  EXPECT_TRUE(turnstile.enter(1, 0));
}

}  // namespace
}  // namespace rehearse::runtime
