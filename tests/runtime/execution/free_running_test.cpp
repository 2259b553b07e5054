// Asynchronous workers count their own steps. After a stop of all ranks, such as an evaluation or a
// checkpoint, each worker must continue with its own next batch: neither with one that it has used
// nor with one that another worker has reached.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "engine/methods/strategy.h"
#include "runtime/checkpoints/checkpoint.h"
#include "runtime/checkpoints/run_folder.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/processes.h"

namespace rehearse::runtime {
namespace {

/// Runs up to the server's step 4, then to 8, and from a checkpoint of step 8 to 12. Returns a line
/// for each run with the steps that this rank began, and the step with which it would continue.
std::string steps_of(const job::Job& job, const link::LinkedProgram& linked,
                     const Environment& environment, const std::string& folder) {
  std::string steps;
  RankRun rank(job, linked, environment);
  const ExecutorContext context{
      linked,    job.model,    job.plan,     job.train,      static_cast<Id>(environment.rank),
      rank.data, rank.network, rank.control, &rank.disturber};
  const auto run = [&](Executor& executor, std::int64_t first, std::int64_t last) {
    executor.run(first,
                 executor.role().free_running ? std::numeric_limits<std::int32_t>::max() : last,
                 [&](std::int64_t step, const StepLoss&) { steps += fmt::format("{} ", step); });
    steps += '\n';
    rank.control.barrier(fmt::format("steps until {}", last));
  };
  run(rank.executor, 0, 4);
  run(rank.executor, 4, 8);
  save_checkpoint(folder, 8, context, rank.executor);
  rank.executor.initialise();
  load_checkpoint(find_checkpoint(folder), context, rank.executor);
  run(rank.executor, 8, 12);
  rank.control.finish();
  return steps + std::to_string(rank.executor.own_step().value_or(12));
}

/// Trains with two workers, of which the first is slow.
void expect_all_go_on(int servers) {
  ScratchFolder data, out;
  write_training_data(data);
  job::Job job = conformance_job({.method = "ps-async",
                                  .mesh = {.dp = 2, .servers = servers},
                                  .schedule = {.global_batch = 128}},
                                 data.path(), 12);
  job.disturb.stragglers = {{.rank = 0, .factor = 5}};
  const link::LinkedProgram linked = link::link(program_of(job));
  const std::vector<Outcome> outcomes = run_ranks(2 + servers, [&](const Environment& environment) {
    return steps_of(job, linked, environment, out.path());
  });
  std::vector<std::int64_t> ends;
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.status, 0) << outcome.text;
    std::istringstream lines(outcome.text);
    std::int64_t next = 0;
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      std::istringstream words(line);
      for (std::int64_t step = 0; words >> step; ++next)
        EXPECT_EQ(step, next) << "rank " << ends.size() << ":\n" << outcome.text;
    }
    ends.push_back(std::stoll(outcome.text.substr(outcome.text.rfind('\n'))));
    EXPECT_EQ(next, ends.back()) << "a step was interrupted";
  }
  for (std::size_t server = 2; server < ends.size(); ++server) EXPECT_EQ(ends[server], 12);
  EXPECT_EQ(ends[0] + ends[1], 2 * 12) << "a gradient was lost or used twice";
  EXPECT_GT(ends[1], ends[0] + 3) << "the slow worker was not slow: this shows nothing";
}

TEST(FreeRunning, WorkersGoOnWithTheirOwnNextBatch) {
  at::set_num_threads(1);
  for (const int servers : {1, 2, 3}) expect_all_go_on(servers);
}

}  // namespace
}  // namespace rehearse::runtime
