// Asynchronous workers count their own steps. After a stop of all ranks, such as an evaluation or a
// checkpoint, each worker must continue with its own next batch: neither with one that it has used
// nor with one that another worker has reached.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "engine/methods/strategy.h"
#include "runtime/checkpoints/checkpoint.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/processes.h"

namespace rehearse::runtime {
namespace {

/// How far the fast worker is, in memory that all ranks share. The slow one waits for it, so that
/// it does a third of the fast one's steps, whatever else the machine does.
class Pace {
 public:
  Pace()
      : fast_(new(mmap(nullptr, sizeof(Fast), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)) Fast) {}
  ~Pace() { munmap(fast_, sizeof(Fast)); }
  Pace(const Pace&) = delete;
  Pace& operator=(const Pace&) = delete;

  void fast_has_done_a_step() { ++fast_->steps; }
  void fast_has_ended_a_run() { ++fast_->runs; }
  /// For the slow worker, after so many steps, in a run of this number from 1 on.
  void wait(std::int64_t steps, int run) const {
    for (int i = 0; i < 60'000; ++i) {
      if (fast_->steps >= 3 * steps || fast_->runs >= run) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw std::runtime_error("the fast worker did no step in a minute");
  }

 private:
  struct Fast {
    std::atomic<std::int64_t> steps = 0;
    std::atomic<int> runs = 0;
  };
  Fast* fast_;
};

/// Runs up to the server's step 4, then to 8, and from a checkpoint of step 8 to 12. Returns a line
/// for each run with the steps that this rank began, and the step with which it would continue.
std::string steps_of(const job::Job& job, const link::LinkedProgram& linked,
                     const Environment& environment, const std::string& folder, Pace& pace) {
  std::string steps;
  std::int64_t done = 0;
  int runs = 0;
  const bool slow = environment.rank == 0, fast = environment.rank == 1;
  RankRun rank(job, linked, environment);
  const ExecutorContext context{
      linked,    job.model,    job.plan,     job.train,      static_cast<Id>(environment.rank),
      rank.data, rank.network, rank.control, &rank.disturber};
  const auto run = [&](Executor& executor, std::int64_t first, std::int64_t last) {
    ++runs;
    executor.run(first,
                 executor.role().free_running ? std::numeric_limits<std::int32_t>::max() : last,
                 [&](std::int64_t step, const StepLoss&) {
                   steps += fmt::format("{} ", step);
                   if (fast) pace.fast_has_done_a_step();
                   if (slow) pace.wait(++done, runs);
                 });
    if (fast) pace.fast_has_ended_a_run();
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
void expect_all_go_on(const char* method, int servers) {
  ScratchFolder data, out;
  write_training_data(data);
  const job::Job job =
      conformance_job({.method = method, .mesh = {.dp = 2, .servers = servers}}, data.path(), 12);
  const link::LinkedProgram linked = link::link(program_of(job));
  Pace pace;
  const std::vector<Outcome> outcomes = run_ranks(2 + servers, [&](const Environment& environment) {
    return steps_of(job, linked, environment, out.path(), pace);
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
  for (const int servers : {1, 2, 3}) expect_all_go_on("ps-async", servers);
  expect_all_go_on("byteps-async", 2);
}

}  // namespace
}  // namespace rehearse::runtime
