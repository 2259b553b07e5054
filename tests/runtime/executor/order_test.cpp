// Compares the order of ops in real processes, read from their time stamps, with the program's
// order.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/methods/strategy.h"
#include "tests/methods.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

constexpr int steps = 4;

std::string lines(const std::vector<std::string>& wrong) {
  std::string text;
  for (const std::string& line : wrong) text += line + "\n";
  return text;
}

class Order : public testing::TestWithParam<std::string> {};

TEST_P(Order, IsTheProgramsOnEveryLane) {
  ScratchFolder data;
  write_training_data(data);
  const job::Job job = conformance_job(smallest_plan(GetParam()), data.path(), steps);
  const link::LinkedProgram linked = link::link(program_of(job));
  const bool free = std::any_of(linked.program.roles.begin(), linked.program.roles.end(),
                                [](const program::Role& role) { return role.free_running; });
  const std::vector<execution::Interval> trace = trace_of(job, free ? 50 * steps : steps);
  if (HasFailure()) return;
  EXPECT_EQ(lines(disorder(linked, trace, steps)), "");
  std::size_t instances = 0;
  for (const program::Role& role : linked.program.roles)
    if (!role.free_running) instances += role.ranks.size() * role.ops.size() * steps;
  if (!free) {
    EXPECT_EQ(trace.size(), instances);
  }
}
INSTANTIATE_TEST_SUITE_P(All, Order, testing::ValuesIn(test::all_methods()), test::method_name);

TEST(OrderOf, AWrongTraceIsFound) {
  ScratchFolder data;
  write_training_data(data);
  const job::Job job = conformance_job(
      {.method = "1f1b", .mesh = {.pp = 2}, .schedule = {.micro_batches = 4}}, data.path(), steps);
  const link::LinkedProgram linked = link::link(program_of(job));
  const std::vector<execution::Interval> trace = trace_of(job, steps);
  if (HasFailure()) return;
  ASSERT_EQ(lines(disorder(linked, trace, steps)), "");
  std::size_t swapped = 0, early = 0;
  for (std::size_t i = 0; i < trace.size(); i += 7) {
    // Exchange the times of this op with those of another op on the same lane.
    for (std::size_t k = 0; k < trace.size(); ++k) {
      const auto lane = [&](const execution::Interval& at) {
        return linked.program.roles[at.role].ops[at.op].lane;
      };
      if (k == i || trace[k].role != trace[i].role || trace[k].place != trace[i].place ||
          lane(trace[k]) != lane(trace[i]))
        continue;
      std::vector<execution::Interval> other = trace;
      std::swap(other[i].start, other[k].start);
      std::swap(other[i].end, other[k].end);
      EXPECT_FALSE(disorder(linked, other, steps).empty());
      ++swapped;
      break;
    }
    // Let this op start just before the end of an op that it waits for.
    const program::Op& op = linked.program.roles[trace[i].role].ops[trace[i].op];
    for (const program::After& after : op.after)
      for (const execution::Interval& waited : trace) {
        if (waited.role != trace[i].role || waited.place != trace[i].place ||
            waited.op != after.op || waited.step != trace[i].step - after.lag)
          continue;
        std::vector<execution::Interval> other = trace;
        other[i].start = std::min(waited.end - 1e-9, other[i].start);
        EXPECT_FALSE(disorder(linked, other, steps).empty());
        ++early;
      }
    std::vector<execution::Interval> other = trace;
    other.erase(other.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(disorder(linked, other, steps).empty());
  }
  EXPECT_GT(swapped, 5U);
  EXPECT_GT(early, 5U);
}

TEST(OrderOf, TwoVersionsLetTheNextBatchBeginBeforeTheUpdate) {
  // Narayanan et al. 2021, section 3.1: no flush between batches.
  ScratchFolder data;
  write_training_data(data);
  const auto early_forwards = [&](const std::string& method) {
    const job::Job job =
        conformance_job({.method = method, .mesh = {.pp = 2}, .schedule = {.micro_batches = 4}},
                        data.path(), steps);
    const link::LinkedProgram linked = link::link(program_of(job));
    const std::vector<execution::Interval> trace = trace_of(job, steps);
    int count = 0;
    for (const execution::Interval& forward : trace) {
      const auto* compute =
          std::get_if<program::Compute>(&linked.program.roles[forward.role].ops[forward.op].work);
      if (compute == nullptr || compute->pass != program::Pass::forward || forward.role != 0)
        continue;
      for (const execution::Interval& update : trace)
        if (update.role == forward.role && update.step == forward.step - 1 &&
            std::holds_alternative<program::Update>(
                linked.program.roles[update.role].ops[update.op].work))
          count += forward.start < update.start;
    }
    return count;
  };
  EXPECT_GT(early_forwards("pipedream-2bw"), 0);
  EXPECT_EQ(early_forwards("1f1b"), 0);
}

TEST(OrderOf, AnAsynchronousWorkerIsNotHeldUpByASlowOne) {
  ScratchFolder data;
  write_data(data);
  constexpr int updates_wanted = 2 * 30;
  job::Job job = conformance_job(
      {.method = "ps-async", .mesh = {.dp = 2, .servers = 1}, .schedule = {.global_batch = 16}},
      data.path(), updates_wanted / 2);
  // The factor multiplies the time that the op took on this rank. It is large, so that the slow
  // worker is slower however the operating system schedules the processes: in one step of it the
  // other one takes about as many as the run has.
  job.disturb.stragglers = {{.rank = 0, .factor = 60}};
  // The first ops of a process take hundreds of times as long as later ones, because LibTorch loads
  // what it needs. Ranks are forks of this process, so it runs them first.
  train_reference(job);
  const link::LinkedProgram linked = link::link(program_of(job));
  int updates[2] = {0, 0}, served = 0;
  for (const execution::Interval& i : trace_of(job, updates_wanted)) {
    const program::Role& role = linked.program.roles[i.role];
    if (role.free_running && std::holds_alternative<program::Take>(role.ops[i.op].work))
      ++updates[i.place];
    served += std::holds_alternative<program::Update>(role.ops[i.op].work);
  }
  EXPECT_EQ(served, updates_wanted);
  EXPECT_GE(updates[0], 1);
  EXPECT_GE(updates[1], 3 * updates[0]) << "the slow one: " << updates[0];
}

}  // namespace
}  // namespace rehearse::runtime
