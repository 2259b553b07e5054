// Tests lanes as threads: that ops run in the order that waits, lags and shifts require, and that
// an error in one lane ends the others.

#include "runtime/executor/lanes/lane_runner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "engine/base/errors.h"
#include "runtime/device/cpu_device.h"
#include "runtime/device/load_device.h"
#include "tests/runtime/processes.h"

namespace rehearse::runtime {
namespace {

const std::unique_ptr<Device> device = cpu_device();

struct Ran {
  Id op = none;
  std::int64_t step = 0;
};

/// Runs lanes and returns what ran, in the order in which it began.
std::vector<Ran> run(std::size_t ops, std::vector<TaskLane> lanes, std::int64_t steps,
                     std::function<void(Id, std::int64_t)> during = {}) {
  std::mutex lock;
  std::vector<Ran> ran;
  LaneRunner runner(*device, ops, std::move(lanes), 0, {.execute = [&](Id op, std::int64_t step) {
    {
      const std::lock_guard guard(lock);
      ran.push_back({op, step});
    }
    if (during) during(op, step);
    return true;
  }});
  EXPECT_EQ(runner.run(0, steps), steps);
  return ran;
}

/// Waits until `happened`, or for a minute: then the caller's expectations fail.
void await(const std::function<bool()>& happened) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!happened() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

std::size_t place(const std::vector<Ran>& ran, Id op, std::int64_t step) {
  const auto found = std::find_if(ran.begin(), ran.end(),
                                  [&](const Ran& r) { return r.op == op && r.step == step; });
  EXPECT_NE(found, ran.end()) << "op " << op << " of step " << step << " did not run";
  return static_cast<std::size_t>(found - ran.begin());
}

// Lane 1 decides by the norm, and is behind: its op of a step ends when the main lane has begun the
// next one. The host is told of a step after that op all the same.
TEST(LaneRunner, TellsOfAStepWhenAllThatTellHaveEnded) {
  constexpr std::int64_t steps = 20;
  const std::vector<TaskLane> lanes = {
      {.tasks = {{.op = 0}}},
      {.tasks = {{.op = 1, .waits = {{.op = 0}}, .tells = true}}},
  };
  std::atomic<std::int64_t> begun = 0, decided = 0;  // steps
  std::vector<std::int64_t> told;
  LaneRunner runner(*device, 2, lanes, 0,
                    {.execute =
                         [&](Id op, std::int64_t step) {
                           if (op == 0) {
                             begun = step + 1;
                             return true;
                           }
                           if (step + 1 < steps) await([&] { return begun > step + 1; });
                           decided = step + 1;
                           return true;
                         },
                     .stepped =
                         [&](std::int64_t step) {
                           EXPECT_GT(decided, step);
                           told.push_back(step);
                         }});
  EXPECT_EQ(runner.run(0, steps), steps);
  ASSERT_EQ(told.size(), std::size_t(steps));
  EXPECT_TRUE(std::ranges::is_sorted(told));
}

// A part of an op that is the host's own comes before the op, in the order of the lane.
TEST(LaneRunner, RunsTheHostsPartBeforeTheOp) {
  const std::vector<TaskLane> lanes = {{.tasks = {{.op = 0}, {.op = 1, .host = true}}}};
  std::string order;
  LaneRunner runner(*device, 2, lanes, 0,
                    {.stage = [&](Id op, std::int64_t) { order += fmt::format("s{} ", op); },
                     .host = [&](Id op, std::int64_t) { order += fmt::format("h{} ", op); },
                     .execute =
                         [&](Id op, std::int64_t) {
                           order += fmt::format("{} ", op);
                           return true;
                         }});
  runner.run(0, 2);
  EXPECT_EQ(order, "s0 0 s1 h1 1 s0 0 s1 h1 1 ");
}

// An op that does not end is the place of its lane, however far the host has issued by then. What
// waits for it is dependent.
TEST(LanePlace, IsWhereTheStreamIs) {
  const auto device = make_device("queues", 0, nullptr);
  const std::vector<TaskLane> lanes = {
      {.tasks = {{.op = 0}, {.op = 2}}},
      {.tasks = {{.op = 1, .waits = {{.op = 0}}}}},
  };
  std::atomic<bool> goes_on = false;
  std::atomic<std::int64_t> staged = -1;
  LaneRunner runner(*device, 3, lanes, 0,
                    {.stage =
                         [&](Id op, std::int64_t step) {
                           if (op == 2) staged = step;
                         },
                     .execute =
                         [&](Id op, std::int64_t step) {
                           if (op == 0 && step == 5) await([&] { return goes_on.load(); });
                           return true;
                         }});
  EXPECT_FALSE(runner.place(0));
  std::thread running([&] { EXPECT_EQ(runner.run(3, 9), 9); });
  const auto at = [&](std::size_t lane, Id op) {
    const auto place = runner.place(lane);
    return place && place->op == op && place->step == 5;
  };
  await([&] { return staged == 6 && at(0, 0) && at(1, 1); });
  EXPECT_EQ(staged, 6);  // a step ahead of the stream
  EXPECT_TRUE(at(0, 0));
  EXPECT_TRUE(at(1, 1));
  EXPECT_FALSE(runner.place(0)->dependent);
  EXPECT_TRUE(runner.place(1)->dependent);
  goes_on = true;
  running.join();
  EXPECT_FALSE(runner.place(0));
  EXPECT_FALSE(runner.place(1));
}

// The times of ops are the device's, whenever the host issues them.
class LaneTimes : public testing::TestWithParam<std::string> {};
TEST_P(LaneTimes, AreThoseOfTheStreams) {
  constexpr auto long_op = std::chrono::milliseconds(5);
  constexpr std::int64_t steps = 8, kept = 12;
  Control control(Environment{}, {});
  const auto device = make_device(GetParam(), 0, &control);
  // Op 1 follows op 0 on another lane; op 2 is short and waits for nothing.
  const std::vector<TaskLane> lanes = {
      {.tasks = {{.op = 0, .computes = true}, {.op = 2}}},
      {.tasks = {{.op = 1, .waits = {{.op = 0}}}}},
  };
  LaneRunner runner(*device, 3, lanes, 0, {.execute = [&](Id op, std::int64_t) {
    if (op == 0) std::this_thread::sleep_for(long_op);
    return true;
  }});
  runner.keep_stamps(kept);
  const std::int64_t began = std::chrono::steady_clock::now().time_since_epoch().count();
  runner.run(0, steps);
  const std::int64_t ended = std::chrono::steady_clock::now().time_since_epoch().count();
  ASSERT_EQ(runner.stamps()[0].size(), std::size_t(kept));
  ASSERT_EQ(runner.stamps()[1].size(), std::size_t(steps));
  // An emulated GPU tells times as CUDA does, in floats; its host has the same clock.
  const std::int64_t rounding = GetParam() == "emulated" ? 100'000 : 0;
  std::map<std::pair<Id, std::int64_t>, OpTimes> times;
  for (const std::vector<OpTimes>& lane : runner.stamps())
    for (const OpTimes& op : lane) {
      times[{op.op, op.step}] = op;
      EXPECT_GE(op.end, op.start);
      EXPECT_GE(op.start, began - rounding);
      EXPECT_LE(op.end, ended + rounding);
    }
  const auto least = std::chrono::nanoseconds(long_op).count() - rounding;
  for (std::int64_t step = 0; step < kept / 2; ++step) {
    EXPECT_GE(times.at({0, step}).end - times.at({0, step}).start, least);
    EXPECT_GE(times.at({1, step}).start, times.at({0, step}).end - rounding);
    EXPECT_GE(times.at({2, step}).start, times.at({0, step}).end - rounding);
  }
  // Of ops that compute, stamped or not; the other two took less than all of them together.
  EXPECT_GE(runner.computed_seconds(), 1e-9 * static_cast<double>(steps * least));
  EXPECT_LE(runner.computed_seconds(), 1e-9 * static_cast<double>(ended - began + rounding));
  control.finish();
}
INSTANTIATE_TEST_SUITE_P(On, LaneTimes, testing::Values("cpu", "queues", "emulated"),
                         [](const auto& info) { return info.param; });

TEST(LaneRunner, WaitsAcrossLanesAndSteps) {
  // Lane 0: compute 0, update 1 after the reduce of the same step. Lane 1: reduce 2 after compute.
  const std::vector<TaskLane> lanes = {
      {.tasks = {{.op = 0}, {.op = 1, .waits = {{.op = 2}}}}},
      {.tasks = {{.op = 2, .waits = {{.op = 0}}}}},
  };
  const std::vector<Ran> ran = run(3, lanes, 50, [](Id op, std::int64_t) {
    if (op == 2) std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
  ASSERT_EQ(ran.size(), 150U);
  for (int step = 0; step < 50; ++step) {
    EXPECT_LT(place(ran, 0, step), place(ran, 2, step));
    EXPECT_LT(place(ran, 2, step), place(ran, 1, step));
  }
}

TEST(LaneRunner, ALagLetsALaneRunAhead) {
  // Lane 0 is fast; its op waits for op 1 of three steps before. Lane 1 is slow: its op ends when
  // lane 0 is two steps ahead.
  const std::vector<TaskLane> lanes = {
      {.tasks = {{.op = 0, .waits = {{.op = 1, .lag = 3}}}}},
      {.tasks = {{.op = 1, .waits = {{.op = 0}}}}},
  };
  std::atomic<std::int64_t> begun = -1;
  const std::vector<Ran> ran = run(2, lanes, 10, [&](Id op, std::int64_t step) {
    if (op == 0) begun = step;
    if (op == 1) await([&] { return begun >= std::min<std::int64_t>(step + 2, 9); });
  });
  for (int step = 3; step < 10; ++step) {
    EXPECT_LT(place(ran, 1, step - 3), place(ran, 0, step));
    EXPECT_LT(place(ran, 0, step), place(ran, 1, step - 1)) << "nothing overlapped";
  }
}

TEST(LaneRunner, AShiftedOpServesEarlierSteps) {
  const std::vector<TaskLane> lanes = {{.tasks = {{.op = 0}, {.op = 1, .shift = 2}}}};
  const std::vector<Ran> ran = run(2, lanes, 4);
  const std::vector<std::pair<Id, std::int64_t>> expected = {{0, 0}, {0, 1}, {0, 2}, {1, 0},
                                                             {0, 3}, {1, 1}, {1, 2}, {1, 3}};
  ASSERT_EQ(ran.size(), expected.size());
  for (std::size_t i = 0; i < ran.size(); ++i) {
    EXPECT_EQ(ran[i].op, expected[i].first);
    EXPECT_EQ(ran[i].step, expected[i].second);
  }
}

TEST(LaneRunner, TheGateEndsAllLanesBeforeTheSameStep) {
  std::mutex lock;
  std::map<Id, int> count;
  LaneRunner runner(*device, 2, {{.tasks = {{.op = 0}}}, {.tasks = {{.op = 1}}}}, 0,
                    {.execute =
                         [&](Id op, std::int64_t) {
                           const std::lock_guard guard(lock);
                           ++count[op];
                           return true;
                         },
                     .begin_step = [](std::int64_t step) { return step < 7; }});
  EXPECT_EQ(runner.run(0, 100), 7);
  EXPECT_EQ(count[0], 7);
  EXPECT_EQ(count[1], 7);
}

TEST(LaneRunner, AnErrorInOneLaneEndsTheOthersAndIsTheOneThrown) {
  std::string told;
  LaneRunner runner(*device, 3,
                    {{.tasks = {{.op = 0, .waits = {{.op = 1}}}}},
                     {.tasks = {{.op = 1}}},
                     {.tasks = {{.op = 2, .waits = {{.op = 1}}}}}},
                    0,
                    {.execute =
                         [](Id op, std::int64_t step) {
                           if (op == 1 && step == 3) throw BackendError("the disk is gone");
                           return true;
                         },
                     .failed = [&](const std::string& what) { told = what; }});
  try {
    runner.run(0, 1'000'000);
    FAIL() << "no error";
  } catch (const BackendError& error) {
    EXPECT_STREQ(error.what(), "the disk is gone");
  }
  EXPECT_EQ(told, "the disk is gone");
}

TEST(LaneRunner, AnAnswerEndsTheRunAfterItsWholeStep) {
  // A worker: lane 0 computes with the answers of two servers, lanes 1 and 2 send to them and wait
  // for the answers. The seventh answer of the first server is its last one. The other server is
  // slow: it must still get and answer the seventh gradient, and no op of an eighth step may run.
  constexpr std::int64_t steps = 7;
  std::atomic<int> done[3] = {};
  LaneRunner runner(*device, 3,
                    {{.tasks = {{.op = 0, .waits = {{.op = 1, .lag = 1}}}}},
                     {.tasks = {{.op = 1, .waits = {{.op = 0}}}}},
                     {.tasks = {{.op = 2, .waits = {{.op = 0}}}}}},
                    0, {.execute = [&](Id op, std::int64_t step) {
                      if (op == 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
                      ++done[op];
                      return op != 1 || step + 1 < steps;
                    }});
  for (int repeat = 0; repeat < 20; ++repeat) {
    for (std::atomic<int>& count : done) count = 0;
    EXPECT_EQ(runner.run(0, 1'000'000), steps);
    for (const std::atomic<int>& count : done) EXPECT_EQ(count, steps);
  }
}

/// Runs what must not hang in a process of its own, which is ended after a minute. The program has
/// no other threads here.
Outcome in_time(const std::function<std::string()>& what) {
  return run_ranks(
             1, [&](const Environment&) { return what(); }, std::chrono::seconds(60))
      .at(0);
}

TEST(LaneRunner, AnEndBetweenALanesStepAndItsWaitIsSeen) {
  // Lane 1 ends the run after step 0, when lane 0 has begun step 1 and does not wait yet. In step 1
  // lane 0 waits for op 1, which never comes. Op 3 follows on the op that ended the run.
  const Outcome outcome = in_time([] {
    std::atomic<bool> begun = false, ended = false;
    LaneRunner runner(*device, 4,
                      {{.tasks = {{.op = 0, .waits = {{.op = 1}}}}},
                       {.tasks = {{.op = 1}, {.op = 2}, {.op = 3}}}},
                      0,
                      {.execute =
                           [&](Id op, std::int64_t) {
                             if (op == 2) await([&] { return begun.load(); });
                             if (op == 3) ended = true;
                             return op != 2;
                           },
                       .begin_step =
                           [&](std::int64_t step) {
                             if (step == 0) return true;
                             begun = true;
                             await([&] { return ended.load(); });
                             return true;
                           }});
    const std::int64_t steps = runner.run(0, 1'000'000);
    return fmt::format("{}{}", steps, ended ? "" : ", and the run did not end while a step began");
  });
  EXPECT_EQ(outcome.status, 0) << "lane 0 waits for ever";
  EXPECT_EQ(outcome.text, "1");
}

TEST(IssueCounter, WakesWhoHasLookedHoweverOftenItWakes) {
  for (int wakes = 1; wakes < 16; ++wakes) {
    const Outcome outcome = in_time([&] {
      IssueCounter counter;
      counter.add();
      const IssueCounter::Seen seen = counter.look();
      for (int i = 0; i < wakes; ++i) counter.wake();
      counter.wait(seen);  // as of a lane that was about to wait
      return fmt::format("{}", IssueCounter::issued(counter.look()));
    });
    ASSERT_EQ(outcome.status, 0) << wakes << " wakes leave a lane asleep";
    EXPECT_EQ(outcome.text, "1");
  }
}

TEST(LaneRunner, ALaneByArrivalTakesWhatIsReady) {
  // Op 1 is first in the lane's list, but waits for the slow op 0 of lane 0; op 2 is ready.
  std::mutex lock;
  std::vector<Id> order;
  std::atomic<bool> took = false;
  LaneRunner runner(
      *device, 3,
      {{.tasks = {{.op = 0}}},
       {.order = program::Order::arrival, .tasks = {{.op = 1, .waits = {{.op = 0}}}, {.op = 2}}}},
      0, {.execute = [&](Id op, std::int64_t) {
        if (op == 0) await([&] { return took.load(); });
        const std::lock_guard guard(lock);
        order.push_back(op);
        if (op == 2) took = true;
        return true;
      }});
  runner.run(0, 1);
  EXPECT_EQ(order, (std::vector<Id>{2, 0, 1}));
}

TEST(LaneRunner, TheSliceKeepsOrderThroughWhatItLeavesOut) {
  program::Role role;
  role.lanes = {{.name = "a"}, {.name = "b"}};
  role.ops.resize(4);
  role.ops[0].lane = 0;  // wanted
  role.ops[1].lane = 1;  // not wanted, after 0
  role.ops[2].lane = 1;  // wanted, after 1 on the same lane
  role.ops[3].lane = 0;  // wanted, waits only for op 2 of the previous step
  link::OrderedProgram linked;
  linked.program.roles = {role};
  linked.roles.resize(1);
  link::WaitTable& waits = linked.roles[0].waits;
  waits.end_op();
  waits.add({.op = 0}), waits.end_op();
  waits.end_op();
  waits.add({.op = 2, .lag = 1}), waits.end_op();
  const std::vector<TaskLane> lanes = lanes_of(linked, 0, {true, false, true, true});
  ASSERT_EQ(lanes[1].tasks.size(), 1U);
  ASSERT_EQ(lanes[1].tasks[0].waits.size(), 1U);
  EXPECT_EQ(lanes[1].tasks[0].waits[0].op, 0U);
  ASSERT_EQ(lanes[0].tasks.size(), 2U);
  EXPECT_TRUE(lanes[0].tasks[1].waits.empty());
}

}  // namespace
}  // namespace rehearse::runtime
