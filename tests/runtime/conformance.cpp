#include "tests/runtime/conformance.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "engine/methods/strategy.h"
#include "runtime/training/train.h"
#include "tests/runtime/processes.h"

namespace rehearse::runtime {
namespace {

constexpr std::size_t most_lines = 10;

}  // namespace

RankRun::RankRun(const job::Job& job, const link::LinkedProgram& linked,
                 const Environment& environment)
    : data({.path = job.train.data,
            .seq_len = job.model.seq_len,
            .global_batch = job.plan.schedule.global_batch,
            .vocab = job.model.vocab,
            .seed = job.train.seed}),
      control(environment, {.timeout = job.run.timeout, .heartbeat = job.run.heartbeat}),
      network(control, {.transport = job.run.transport}),
      // LibTorch replaces the thread pool of a forked process's parent in the first call that asks
      // for it. Two lanes that do so at once may find none ("Invalid thread pool!"), so the first
      // call comes here.
      device((at::set_num_threads(1), make_device(job.run.device, environment.rank, &control))),
      disturber(job.disturb, job.plan.mesh.world_size()),
      executor({.linked = linked,
                .model = job.model,
                .plan = job.plan,
                .train = job.train,
                .rank = static_cast<Id>(environment.rank),
                .data = data,
                .network = network,
                .control = control,
                .disturber = &disturber,
                .device = device.get()}) {
  executor.initialise();
}

void RankRun::steps(std::int64_t first, std::int64_t last) {
  executor.run(first, last, [](std::int64_t, const StepLoss&) {});
  control.barrier(fmt::format("steps {} to {}", first, last));
}

job::Job conformance_job(plan::Plan plan, const std::string& data, std::int64_t steps,
                         const std::string& model_name) {
  job::Job job;
  model::ModelSpec model = model::load_model(model_name, 16);
  model.layers = 4;  // one for each model chunk of an interleaved schedule
  model.groups.clear();
  model.segments.clear();
  job.model = build_model(model);
  if (plan.schedule.global_batch == 0) plan.schedule.global_batch = 8;
  plan.exchange.bucket = Bytes(60e3);
  job.plan = methods::prepare(plan, job.model);
  job.cluster = cluster::load_cluster("this-machine:" + std::to_string(job.plan.mesh.world_size()));
  job.train.seq_len = job.model.seq_len;
  job.train.steps = steps;
  job.train.lr = 3e-3;
  job.train.data = data;
  job.run.threads = 1;
  job.run.device = test_device();
  job.run.timeout = Seconds(300);
  return job;
}

void write_training_data(const ScratchFolder& folder) {
  write_shard(folder.file("tiny_train_000.bin"), learnable_tokens(20'000, 512));
}

plan::Plan smallest_plan(const std::string& method) {
  const methods::Strategy& strategy = methods::strategy_named(method);
  plan::Plan plan{.method = method,
                  .mesh = {.pp = std::min(strategy.pp, 2), .tp = std::min(strategy.tp, 2)},
                  .schedule = {.micro_batches = 2}};
  if (plan.mesh.pp * plan.mesh.tp == 1) plan.mesh.dp = 2;
  if (strategy.combines.local_steps) plan.exchange.averaging.local_steps = 2;
  if (plan.mesh.pp > 1) plan.schedule.micro_batches = 4;
  return plan;
}

std::vector<execution::Interval> trace_of(const job::Job& job, int most_steps) {
  at::set_num_threads(1);  // starts no thread pool, which would not survive a fork
  const std::vector<Outcome> outcomes =
      run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
        execution::Recording recording;
        train(job, environment, {.trace_steps = most_steps, .sink = &recording, .quiet = true});
        std::string bytes(recording.intervals.size() * sizeof(execution::Interval), '\0');
        std::memcpy(bytes.data(), recording.intervals.data(), bytes.size());
        return bytes;
      });
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    EXPECT_EQ(outcomes[rank].status, 0) << "rank " << rank << ": " << outcomes[rank].text;
  std::vector<execution::Interval> trace;
  if (outcomes[0].status == 0) {
    trace.resize(outcomes[0].text.size() / sizeof(execution::Interval));
    std::memcpy(trace.data(), outcomes[0].text.data(), trace.size() * sizeof(execution::Interval));
  }
  return trace;
}

std::vector<std::string> disorder(const link::LinkedProgram& linked,
                                  const std::vector<execution::Interval>& trace, int steps) {
  std::vector<std::string> wrong;
  const program::Program& program = linked.program;
  const auto name = [&](const execution::Interval& i) {
    return fmt::format("step {} place {} \"{}\" at {:.9f}", i.step, i.place,
                       to_text(program, program.roles[i.role], i.op), i.start);
  };
  std::map<std::tuple<Id, Id, Id, int>, const execution::Interval*>
      instances;  // role, place, op, step
  std::map<std::tuple<Id, Id, Id>, std::vector<const execution::Interval*>> lanes;
  for (const execution::Interval& i : trace) {
    if (!instances.emplace(std::tuple{i.role, i.place, i.op, i.step}, &i).second)
      wrong.push_back("twice: " + name(i));
    if (i.end < i.start) wrong.push_back("ends before it starts: " + name(i));
    lanes[{i.role, i.place, program.roles[i.role].ops[i.op].lane}].push_back(&i);
  }
  for (Id r = 0; r < program.roles.size(); ++r) {
    const program::Role& role = program.roles[r];
    if (role.free_running) continue;
    for (Id place = 0; place < role.ranks.size(); ++place)
      for (Id op = 0; op < role.ops.size(); ++op)
        for (int step = 0; step < steps; ++step)
          if (!instances.contains({r, place, op, step}))
            wrong.push_back(fmt::format("missing: step {} place {} \"{}\"", step, place,
                                        to_text(program, role, op)));
  }
  for (auto& [key, lane] : lanes) {
    const program::Role& role = program.roles[std::get<0>(key)];
    if (role.lanes[std::get<2>(key)].order != program::Order::in_order) continue;
    // An op runs for step s in iteration s + shift; within an iteration, in the program's order.
    const auto turn = [&](const execution::Interval* i) {
      return std::pair{i->step + role.ops[i->op].shift, i->op};
    };
    std::sort(lane.begin(), lane.end(),
              [&](const execution::Interval* a, const execution::Interval* b) {
                return turn(a) < turn(b);
              });
    for (std::size_t i = 1; i < lane.size(); ++i)
      if (lane[i]->start < lane[i - 1]->end)
        wrong.push_back(fmt::format("out of its lane's order: {} before the end of {}",
                                    name(*lane[i]), name(*lane[i - 1])));
  }
  for (const execution::Interval& i : trace)
    for (const program::After& after : program.roles[i.role].ops[i.op].after) {
      const int step = i.step - after.lag;
      if (step < 0) continue;
      const auto waited = instances.find({i.role, i.place, after.op, step});
      if (waited == instances.end())
        wrong.push_back(
            fmt::format("op {} of step {} is not there for {}", after.op, step, name(i)));
      else if (i.start < waited->second->end)
        wrong.push_back(fmt::format("{} does not wait for {}", name(i), name(*waited->second)));
    }
  if (wrong.size() > most_lines) wrong.resize(most_lines);
  return wrong;
}

}  // namespace rehearse::runtime
