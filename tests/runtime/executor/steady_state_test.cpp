// In the steady state a step takes nothing from the heap but the tensors that LibTorch makes: all
// that an op needs is prepared before the first step.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "runtime/device/load_device.h"
#include "runtime/executor/lanes/lane_runner.h"
#include "tests/methods.h"
#include "tests/runtime/allocations.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/processes.h"
#include "tests/runtime/sparse_job.h"

namespace rehearse::runtime {
namespace {

/// Runs `warm` steps, then `steps`, then twice as many. Returns whether and where one of the last
/// two runs took more from the heap than the other; empty: none did.
template <class Run>
std::string taken_by_steps(std::int64_t warm, std::int64_t steps, const Run& run) {
  run(std::int64_t{0}, warm);
  std::int64_t made[2] = {};
  std::string latest[2];
  std::int64_t first = warm;
  for (const std::int64_t part : {0, 1}) {
    AllocationCounter counter;
    const std::int64_t last = first + (part + 1) * steps;
    run(first, last);
    made[part] = counter.made();
    latest[part] = counter.latest();
    first = last;
  }
  if (made[0] == made[1]) return "";
  return fmt::format("{} allocations in {} steps, {} in {}; the latest:\n{}", made[0], steps,
                     made[1], 2 * steps, latest[made[1] > made[0]]);
}

/// Of a whole run whose workers do as many steps as they come to. At most one allocation for each
/// of the server's steps, of many ops: buffers are made until there are enough for the most
/// messages that are ever under way, and a queue of messages takes a block at a time.
std::string taken_by_one_run(Executor& executor) {
  constexpr std::int64_t steps = 400;
  AllocationCounter counter;
  executor.run(0, executor.role().free_running ? std::numeric_limits<std::int32_t>::max() : steps,
               [](std::int64_t, const StepLoss&) {});
  const std::int64_t made = counter.made();
  if (made <= steps) return "";
  return fmt::format("{} allocations; the latest:\n{}", made, counter.latest());
}

void expect_none(const job::Job& job) {
  if (!AllocationCounter::works()) GTEST_SKIP() << "a sanitizer has its own operator new";
  at::set_num_threads(1);
  const link::LinkedProgram linked = link::link(program_of(job), job.model);
  const bool free = std::ranges::any_of(linked.program.roles, &program::Role::free_running);
  const auto outcomes = run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
    RankRun rank(job, linked, environment);
    const std::string taken =
        free ? taken_by_one_run(rank.executor)
             : taken_by_steps(4, 2, [&](std::int64_t first, std::int64_t last) {
                 rank.executor.run(first, last, [](std::int64_t, const StepLoss&) {});
               });
    rank.control.finish();
    return taken;
  });
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].status, 0);
    EXPECT_TRUE(outcomes[rank].text.empty()) << "rank " << rank << ": " << outcomes[rank].text;
  }
}

class SteadyState : public testing::TestWithParam<std::string> {};

TEST_P(SteadyState, TakesNothingFromTheHeap) {
  ScratchFolder data;
  write_training_data(data);
  expect_none(conformance_job(smallest_plan(GetParam()), data.path(), 100));
}
INSTANTIATE_TEST_SUITE_P(All, SteadyState, testing::ValuesIn(test::all_methods()),
                         test::method_name);

struct Way {
  std::string name = {};
  plan::Plan plan = {};
  std::string model = "gpt-tiny", device = test_device();
  double dropout = 0;
};
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

class SteadyStateOf : public testing::TestWithParam<Way> {};

TEST_P(SteadyStateOf, TakesNothingFromTheHeap) {
  ScratchFolder data;
  write_training_data(data);
  job::Job job = conformance_job(GetParam().plan, data.path(), 100, GetParam().model);
  job.run.device = GetParam().device;
  job.model.dropout = GetParam().dropout;
  expect_none(job);
}
INSTANTIATE_TEST_SUITE_P(
    All, SteadyStateOf,
    testing::ValuesIn(std::vector<Way>{
        {"behind_the_host", {.method = "ddp", .mesh = {.dp = 2}}, "gpt-tiny", "queues"},
        {"of_bert",
         {.method = "zb-h1", .mesh = {.pp = 2}, .schedule = {.micro_batches = 4}},
         "bert-tiny"},
        {"of_gemma",
         {.method = "zb-h1", .mesh = {.pp = 2}, .schedule = {.micro_batches = 4}},
         "gemma2-tiny"},
        {"of_llama_recomputing",
         {.method = "ddp", .mesh = {.dp = 2}, .schedule = {.recompute = true}},
         "llama-tiny"},
        {.name = "with_dropout", .plan = {.method = "ddp", .mesh = {.dp = 2}}, .dropout = 0.1},
        {"with_loss_scaling",
         {.method = "zero2", .mesh = {.dp = 2}, .precision = program::DType::f16}},
        {"ring", {.method = "ddp", .mesh = {.order = "pp,dp,cp,tp", .cp = 2}}},
        {"ulysses",
         {.method = "ddp",
          .mesh = {.order = "pp,dp,cp,tp", .cp = 2, .context = plan::Context::ulysses}}},
    }),
    [](const auto& info) { return info.param.name; });

TEST(SteadyStateOfSelections, TakesNothingFromTheHeap) {
  ScratchFolder data;
  write_training_data(data);
  for (const program::Selector selector :
       {program::Selector::top_k, program::Selector::random_k, program::Selector::threshold}) {
    plan::Plan plan{.mesh = {.dp = 2}};
    plan.exchange.sparse.selector = selector;
    expect_none(sparse_job(plan, plan::Reduction::sparse, 0.1, data.path()));
  }
}

TEST(AllocationCounter, CountsStringsThatTheProgramGrows) {
  if (!AllocationCounter::works()) GTEST_SKIP() << "a sanitizer has its own operator new";
  std::string text = "short";
  const AllocationCounter counter;
  text.append(100, 'x');
  EXPECT_EQ(counter.made(), 1) << text;
}

// The issue of ops, by a run that is long beside what queues and logs are kept of.
TEST(SteadyStateOfLanes, TakesNothingFromTheHeap) {
  if (!AllocationCounter::works()) GTEST_SKIP() << "a sanitizer has its own operator new";
  for (const char* const name : {"cpu", "queues"}) {
    const auto device = make_device(name, 0, nullptr);
    const std::vector<TaskLane> lanes = {
        {.tasks = {{.op = 0, .computes = true}, {.op = 2, .waits = {{.op = 1}}, .tells = true}}},
        {.order = program::Order::arrival, .tasks = {{.op = 1, .waits = {{.op = 0}}}}},
    };
    LaneRunner runner(
        *device, 3, lanes, 0,
        {.execute = [](Id, std::int64_t) { return true; }, .stepped = [](std::int64_t) {}});
    const std::string taken = taken_by_steps(
        10, 200, [&](std::int64_t first, std::int64_t last) { runner.run(first, last); });
    EXPECT_TRUE(taken.empty()) << name << ": " << taken;
  }
}

}  // namespace
}  // namespace rehearse::runtime
