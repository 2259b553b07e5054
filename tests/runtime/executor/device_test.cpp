// Tests the asynchronous path of the executor on the device queues, whose streams run behind the
// host, in real processes and rank by rank: the same bits as on the CPU, no memory within the
// host's reach, and each wait that matters is missed when it is dropped.
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <vector>

#include "engine/link/hazards.h"
#include "engine/methods/strategy.h"
#include "runtime/executor/lanes/lane_runner.h"
#include "runtime/executor/rank_memory.h"
#include "tests/methods.h"
#include "tests/runtime/as_body.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/sparse_job.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

/// The smallest plan of a method, or of "fedavg-secure".
plan::Plan plan_of(const std::string& name) {
  if (name != "fedavg-secure") return smallest_plan(name);
  plan::Plan plan = smallest_plan("fedavg");
  plan.mesh.dp = 3;
  plan.schedule = {.global_batch = 9};
  plan.exchange.averaging.secure.on = true;
  return plan;
}

/// Weights and losses at the end of a short run.
std::pair<std::vector<double>, std::string> trained(job::Job job, const ScratchFolder& out,
                                                    const std::string& device, int seed) {
  setenv("REHEARSE_QUEUES_SEED", std::to_string(seed).c_str(), 1);
  job.run.device = device;
  job.train.out = out.file(fmt::format("{}-{}", device, seed));
  const TrainedRun run = train_in_processes(job);
  if (testing::Test::HasFailure()) return {};
  std::string bytes;
  for (const auto& [name, weight] : weights_of(run.checkpoint, job.model))
    bytes.append(static_cast<const char*>(weight.data_ptr()), weight.nbytes());
  return {run.losses, bytes};
}

void expect_the_cpus_bits(const std::string& method, int first_seed, int last_seed) {
  ScratchFolder data, out;
  write_data(data);
  job::Job job = small_job(plan_of(method), data.path(), out.path());
  job.train.steps = 5;
  job.train.eval_every = 2;  // the run stops and goes on
  const auto cpu = trained(job, out, "cpu", 0);
  for (int seed = first_seed; seed <= last_seed && !testing::Test::HasFailure(); ++seed) {
    const auto queues = trained(job, out, "queues", seed);
    EXPECT_EQ(queues.first, cpu.first) << "losses with seed " << seed;
    EXPECT_TRUE(queues.second == cpu.second) << "weights with seed " << seed;
  }
  if (testing::Test::HasFailure() || first_seed != last_seed) return;
  const auto emulated = trained(job, out, "emulated", 0);
  EXPECT_EQ(emulated.first, cpu.first) << "losses of the emulated GPU";
  EXPECT_TRUE(emulated.second == cpu.second) << "weights of the emulated GPU";
}

/// Methods whose results do not depend on the order in which messages arrive.
std::vector<std::string> exact_methods() {
  std::vector<std::string> names = test::all_methods();
  names.emplace_back("fedavg-secure");
  std::erase_if(names, [](const std::string& name) {
    return link::link(program_of(conformance_job(plan_of(name), "", 1))).mailboxes;
  });
  return names;
}

class Queues : public testing::TestWithParam<std::string> {};
TEST_P(Queues, TrainToTheCpusBits) { expect_the_cpus_bits(GetParam(), 1, 1); }
INSTANTIATE_TEST_SUITE_P(All, Queues, testing::ValuesIn(exact_methods()), test::method_name);

class SoakQueues : public testing::TestWithParam<std::string> {};
TEST_P(SoakQueues, TrainToTheCpusBitsWithTwentySeeds) { expect_the_cpus_bits(GetParam(), 1, 20); }
INSTANTIATE_TEST_SUITE_P(All, SoakQueues, testing::ValuesIn(exact_methods()), test::method_name);

// One rank alone: with two, the one that dies first would end the other.
TEST(QueuesMemory, IsOutOfTheHostsReach) {
  ScratchFolder data;
  write_training_data(data);
  job::Job job = conformance_job({.method = "ddp", .mesh = {.dp = 1}}, data.path(), 1);
  job.run.device = "queues";
  const link::LinkedProgram linked = link::link(program_of(job));
  at::set_num_threads(1);
  const Outcome read = run_ranks(1, [&](const Environment& environment) {
                         RankRun rank(job, linked, environment);
                         rank.steps(0, 1);
                         const volatile std::byte* const address = rank.executor.address(0, 1, 1);
                         return fmt::format("{}", static_cast<int>(*address));
                       }).at(0);
  EXPECT_EQ(read.status, 128 + SIGSEGV) << read.text;
}

TEST(QueuesMemory, IsForBodiesOnly) {
  const auto device = make_device("queues", 0);
  const link::LinkedProgram linked =
      link::link(program_of(conformance_job({.method = "ddp", .mesh = {.dp = 2}}, "", 1)));
  RankMemory memory(*device, linked.program, 0, 0);
  const program::Role& role = linked.program.roles[0];
  const auto ref = find(role.ops.back(), program::Slot::param);
  ASSERT_NE(ref, nullptr);
  const Operand weights = memory.operand(*ref);
  EXPECT_THROW(memory.read(weights, 1), ProgramError);
  EXPECT_THROW(memory.write(weights, 1), ProgramError);
  EXPECT_THROW(memory.state(weights.storage, 1, 1), ProgramError);
  memory.edit(weights.storage, 1, 1, [](std::span<std::byte> bytes) { bytes[0] = std::byte{7}; });
  EXPECT_EQ(memory.host(weights.storage, 1, 1).bytes[0], std::byte{7});
}

// What a value held becomes NaN when its last user has released it.
TEST(QueuesMemory, OverwritesWhatNobodyMayRead) {
  const auto device = make_device("queues", 0);
  const link::LinkedProgram linked =
      link::link(program_of(conformance_job({.method = "ddp", .mesh = {.dp = 2}}, "", 1)));
  RankMemory memory(*device, linked.program, 0, 0);
  const auto whole_value = [&] {
    for (const program::Op& op : linked.program.roles[0].ops)
      for (const program::Ref& ref : op.refs)
        if (const Operand found = memory.operand(ref); found.value && found.whole &&
                                                       found.slot != program::Slot::saved &&
                                                       found.dtype == program::DType::f32)
          return found;
    throw ProgramError("no op writes a whole value");
  };
  const Operand value = whole_value();
  memory.add_last_user(value);
  memory.add_last_user(value);
  memory.drop_values();
  std::vector<float> held(static_cast<std::size_t>(value.elements), 1);
  std::size_t kept = 0;  // elements that are unharmed after the first of two releases
  as_body(*device, [&] {
    const std::int64_t step = value.age;
    memory.set(value, step, at::from_blob(held.data(), {value.elements}));
    memory.release(value, step + value.age);
    kept = static_cast<std::size_t>(std::ranges::count(held, 1.0F));
    memory.release(value, step + value.age);
  });
  EXPECT_EQ(kept, held.size());
  EXPECT_TRUE(std::ranges::all_of(held, [](float one) { return std::isnan(one); }));
}

/// Runs the lanes of one rank for some steps; its ops touch what they read and write, and do no
/// more. Returns what was wrong; empty: nothing.
std::string touches(const link::LinkedProgram& linked, Id role_id, std::int64_t steps,
                    const std::string& dropped) {
  setenv("REHEARSE_QUEUES_DROP", dropped.c_str(), 1);
  setenv("REHEARSE_QUEUES_SEED", "0", 1);
  const auto device = make_device("queues", 0);
  unsetenv("REHEARSE_QUEUES_DROP");
  const program::Role& role = linked.program.roles[role_id];
  RankMemory memory(*device, linked.program, role_id, role.ranks.front());
  std::vector<std::vector<Operand>> operands(role.ops.size()), dies(role.ops.size());
  for (Id op = 0; op < role.ops.size(); ++op) {
    for (const program::Ref& ref : role.ops[op].refs) operands[op].push_back(memory.operand(ref));
    for (const program::Ref& ref : linked.roles[role_id].ops[op].dies)
      memory.add_last_user(dies[op].emplace_back(memory.operand(ref)));
  }
  memory.drop_values();
  const auto use = [&](const Operand& operand, std::int64_t step) {
    const bool reads = operand.mode == program::Mode::read;
    if (operand.slot == program::Slot::saved)
      memory.saved(operand, reads ? step : step + operand.age);
    else if (reads)
      memory.read(operand, step);
    else
      memory.write(operand, step);
  };
  LaneRunner runner(*device, role.ops.size(), lanes_of(linked, role_id), 0,
                    {.execute =
                         [&](Id op, std::int64_t step) {
                           if (role.ops[op].when.due(step))
                             for (const Operand& operand : operands[op]) use(operand, step);
                           for (const Operand& dying : dies[op]) memory.release(dying, step);
                           return true;
                         }},
                    turns_of(linked, role_id));
  try {
    runner.run(0, steps);
    return "";
  } catch (const std::exception& error) {
    // The device's ProgramError, or LibTorch's own error where two threads really met in one tensor
    // before the device could say so. Both miss the wait.
    return error.what();
  }
}

/// Which ops come before others in a run of some steps: by the order of each lane, and by waits.
class Before {
 public:
  static constexpr std::int64_t steps = 6;
  Before(const std::vector<TaskLane>& lanes, std::size_t ops) : ops_(ops), edges_(ops * steps) {
    for (const TaskLane& lane : lanes) {
      std::size_t last = none_yet;
      for (std::int64_t iteration = 0; iteration < 2 * steps; ++iteration)
        for (const Task& task : lane.tasks) {
          const std::int64_t step = iteration - task.shift;
          if (step < 0 || step >= steps) continue;
          const std::size_t node = at(task.op, step);
          if (last != none_yet) edges_[node].push_back(last);
          last = node;
          for (const link::Wait& wait : task.waits)
            if (step >= wait.lag) edges_[node].push_back(at(wait.op, step - wait.lag));
        }
    }
  }
  bool holds(Id first, Id then, int lag) const {
    std::vector<bool> seen(edges_.size());
    std::vector<std::size_t> open = {at(then, steps - 1)};
    const std::size_t target = at(first, steps - 1 - lag);
    while (!open.empty()) {
      const std::size_t node = open.back();
      open.pop_back();
      for (const std::size_t earlier : edges_[node]) {
        if (earlier == target) return true;
        if (!seen[earlier]) open.push_back(earlier);
        seen[earlier] = true;
      }
    }
    return false;
  }

 private:
  static constexpr std::size_t none_yet = ~std::size_t{0};
  std::size_t at(Id op, std::int64_t step) const {
    return static_cast<std::size_t>(step) * ops_ + op;
  }
  std::size_t ops_;
  std::vector<std::vector<std::size_t>> edges_;
};

class DroppedWaits : public testing::TestWithParam<std::string> {};

TEST_P(DroppedWaits, AreMissed) {
  const link::LinkedProgram linked =
      link::link(program_of(conformance_job(plan_of(GetParam()), "", 1)));
  for (Id role = 0; role < linked.program.roles.size(); ++role) {
    const std::size_t ops = linked.program.roles[role].ops.size();
    EXPECT_EQ(touches(linked, role, Before::steps, "9:0:0"), "");
    const std::vector<link::Hazard> hazards =
        link::hazard_list(linked.program, linked.program.roles[role]);
    // Ops may work in some steps only: whether both do, so many steps apart.
    const auto both_work = [&](const link::Hazard& hazard) {
      const auto& all = linked.program.roles[role].ops;
      for (std::int64_t step = hazard.lag; step < Before::steps; ++step)
        if (all[hazard.op].when.due(step) && all[hazard.on].when.due(step - hazard.lag))
          return true;
      return false;
    };
    std::vector<TaskLane> lanes = lanes_of(linked, role);
    std::size_t dropped = 0;
    for (TaskLane& lane : lanes)
      for (Task& task : lane.tasks) {
        std::set<Id> waited;
        for (const link::Wait& wait : task.waits) waited.insert(wait.op);
        for (const Id on : waited) {
          const std::vector<link::Wait> all = task.waits;
          std::erase_if(task.waits, [&](const link::Wait& wait) { return wait.op == on; });
          const Before without(lanes, ops);
          task.waits = all;
          // Other waits may imply this one, and a throttle protects no data.
          const auto broken = std::ranges::find_if(hazards, [&](const link::Hazard& hazard) {
            return both_work(hazard) && !without.holds(hazard.on, hazard.op, hazard.lag);
          });
          if (broken == hazards.end()) continue;
          ++dropped;
          EXPECT_NE(touches(linked, role, Before::steps, fmt::format("0:{}:{}", task.op, on)), "")
              << "op " << task.op << " does not wait for op " << on;
        }
      }
    if (lanes.size() > 1) {
      EXPECT_GT(dropped, 0U) << "role " << role;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, DroppedWaits, testing::ValuesIn(exact_methods()), test::method_name);

// The host's own part of an op is out of reach of the device's memory.
TEST(QueuesMemory, IsNotForTheHostsPartOfAnOp) {
  const auto device = make_device("queues", 0);
  const auto stream = device->stream("save");
  std::string said;
  std::function<void()> look = [&] {
    try {
      device->check_body();
    } catch (const ProgramError& error) {
      said = error.what();
    }
  };
  const Body body{
      .run = [](void* self, const Body&) { (*static_cast<std::function<void()>*>(self))(); },
      .self = &look};
  stream->launch(body);
  stream->synchronize();
  EXPECT_EQ(said, "");
  stream->call(body);
  stream->synchronize();
  EXPECT_NE(said, "");
}

// The device holds the first op of each step until the host has begun the next one. When the host
// begins a step, the main lane has ended all steps but the last one.
TEST(QueuesRun, TheHostIsAheadAndNoMoreThanAStepOfTheMainLane) {
  constexpr std::int64_t steps = 50;
  const auto device = make_device("queues", 0);
  std::mutex lock;
  std::condition_variable changed;
  std::int64_t begun = 0, ended = 0;  // steps
  const std::vector<TaskLane> lanes = {{.name = "compute", .tasks = {{.op = 0}, {.op = 1}}}};
  LaneRunner runner(*device, 2, lanes, 0,
                    {.execute =
                         [&](Id op, std::int64_t step) {
                           std::unique_lock guard(lock);
                           if (op == 1) {
                             ended = step + 1;
                           } else if (step + 1 < steps) {
                             EXPECT_TRUE(changed.wait_for(guard, std::chrono::minutes(1),
                                                          [&] { return begun > step + 1; }))
                                 << "the host waits for step " << step;
                           }
                           return true;
                         },
                     .begin_step =
                         [&](std::int64_t step) {
                           const std::lock_guard guard(lock);
                           begun = step + 1;
                           EXPECT_GE(ended, step - 1) << "at the begin of step " << step;
                           changed.notify_all();
                           return true;
                         },
                     .stepped = [](std::int64_t) {}});
  EXPECT_EQ(runner.run(0, steps), steps);
  EXPECT_EQ(ended, steps);
}

TEST(QueuesRun, EndsWithTheOpsThatNothingOrders) {
  ScratchFolder data, out;
  write_data(data);
  job::Job job = small_job({.method = "ddp", .mesh = {.dp = 2}}, data.path(), "");
  job.run.device = "queues";
  const link::LinkedProgram linked = link::link(program_of(job));
  // The first all-reduce does not wait for the backward that it sums.
  std::string drop;
  for (const TaskLane& lane : lanes_of(linked, 0))
    for (const Task& task : lane.tasks)
      if (task.meets && drop.empty() && !task.waits.empty())
        drop = fmt::format("0:{}:{}", task.op, task.waits.front().op);
  ASSERT_NE(drop, "");
  setenv("REHEARSE_QUEUES_DROP", drop.c_str(), 1);
  const std::vector<Outcome> outcomes = fail_in_processes(job, {});
  unsetenv("REHEARSE_QUEUES_DROP");
  EXPECT_EQ(outcomes[0].status, 1);
  EXPECT_NE(outcomes[0].text.find("nothing orders them"), std::string::npos) << outcomes[0].text;
}

}  // namespace
}  // namespace rehearse::runtime
