// Measures the overhead of the engine: the time of a training step that is neither tensor work nor
// communication. The model is GPT-2 124M, trained by ddp in two processes of one thread each. The
// timestamps of an op include the search for its operands, so there are two numbers, each as a
// share of the step:
//   - between ops: the time from the moment when an op could start (its lane is free, its waits are
//     done) to the moment when it started, summed over the compute lane;
//   - upper limit of the whole engine: the time of a step with the same ops on tensors with very
//     few elements, in one process. It includes everything that the engine does, and also
//     LibTorch's dispatch.
// Arguments: seq_len, samples per rank, steps.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "bench/figure.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "runtime/control/launch/environment.h"
#include "runtime/control/launch/launcher.h"
#include "runtime/executor/lanes/lane_runner.h"
#include "runtime/training/train.h"

namespace {

using namespace rehearse;
namespace fs = std::filesystem;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Writes a shard of `count` pseudo-random tokens in llm.c's format.
void write_tokens(const fs::path& folder, int count, unsigned vocab) {
  std::vector<std::int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = count;
  std::ofstream file(folder / "bench_train_000.bin", std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), 1024);
  std::uint32_t state = 1;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    const auto token = static_cast<std::uint16_t>((state >> 8) % vocab);
    file.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
}

job::Job job_of(const std::string& model, const std::string& data, int ranks, int seq_len,
                int samples, int steps) {
  job::Job job =
      job::parse_job(fmt::format("model.name = \"{}\"\ncluster.name = \"this-machine\"\n"
                                 "method = {{ name = \"ddp\", dp = {} }}\n"
                                 "train = {{ seq_len = {}, global_batch = {}, steps = {}, data = "
                                 "\"{}\" }}\nrun.threads = 1\n",
                                 model, ranks, seq_len, ranks * samples, steps, data),
                     "bench");
  job.train.out.clear();  // no checkpoints are written
  return job;
}

/// Seconds per step in which the compute lane of a place is idle although its next op could start.
/// The first step does not count.
double idle_while_ready(const link::OrderedProgram& linked,
                        const std::vector<execution::Interval>& intervals, Id place, int steps) {
  const runtime::TaskLane lane = runtime::lanes_of(linked, 0).front();
  std::map<std::pair<Id, int>, execution::Interval> ran;
  for (const execution::Interval& i : intervals)
    if (i.place == place) ran[{i.op, i.step}] = i;
  double sum = 0, free = 0;
  for (int step = 0; step < steps; ++step)
    for (const runtime::Task& task : lane.tasks) {
      double ready = free;
      for (const link::Wait& wait : task.waits)
        if (const auto it = ran.find({wait.op, step - wait.lag}); it != ran.end())
          ready = std::max(ready, it->second.end);
      const execution::Interval& op = ran.at({task.op, step});
      if (step > 0) sum += std::max(0.0, op.start - ready);
      free = op.end;
    }
  return sum / (steps - 1);
}

/// Seconds of a step with the same ops on tensors with very few elements, in this process alone.
double empty_step(const fs::path& folder) {
  const std::string model = (folder / "empty.toml").string();
  std::ofstream(model) << "family = \"gpt\"\nlayers = 12\nhidden = 24\nheads = 12\nvocab = 64\n"
                          "seq_len = 2\nmax_positions = 2\n";
  fs::create_directories(folder / "few");
  write_tokens(folder / "few", 10'000, 64);
  const job::Job job = job_of(model, (folder / "few").string(), 1, 2, 1, 200);
  return median(runtime::train(job, {}, {.quiet = true}).step_times);
}

void be_rank(const fs::path& folder, int seq_len, int samples, int steps) {
  const runtime::Environment environment = runtime::detect_environment();
  const int ranks = environment.world_size;
  const job::Job job =
      job_of("gpt2-124m", (folder / "many").string(), ranks, seq_len, samples, steps);
  execution::Recording recording;  // of all ranks; only rank 0 gets the intervals
  runtime::TrainOptions options{.trace_steps = steps, .quiet = true};
  options.sink = &recording;
  const runtime::TrainSummary summary = train(job, environment, options);
  if (environment.rank != 0) return;
  const link::OrderedProgram linked = link::order(program_of(job));
  double idle = 0;
  for (Id place = 0; place < static_cast<Id>(ranks); ++place)
    idle = std::max(idle, idle_while_ready(linked, recording.intervals, place, steps));
  const double step = summary.median_step_s, empty = empty_step(folder);
  fmt::print(
      "engine overhead, gpt2-124m, ddp of {} processes, {} x {} tokens each: step {:.3f} s\n",
      ranks, samples, seq_len, step);
  fmt::print("  compute lane idle though an op was ready   {:8.3f} ms  {:.3f}% of the step\n",
             1e3 * idle, 100 * idle / step);
  fmt::print("  whole engine at most (step of empty ops)   {:8.3f} ms  {:.3f}% of the step\n",
             1e3 * empty, 100 * empty / step);
  bench::record({.name = "engine overhead, lane idle though an op was ready",
                 .measured = 100 * idle / step,
                 .unit = "% of a step",
                 .against = "goal",
                 .reference = 2});
  bench::record({.name = "engine overhead at most, a step of empty ops",
                 .measured = 100 * empty / step,
                 .unit = "% of a step"});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto argument = [&](int i, int otherwise) {
      return argc > i ? std::atoi(argv[i]) : otherwise;
    };
    const std::vector<int> sizes = {argument(1, 128), argument(2, 2), argument(3, 6)};
    std::string folder = (fs::temp_directory_path() / "rehearse-bench-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no temporary folder");
    fs::create_directories(fs::path(folder) / "many");
    write_tokens(fs::path(folder) / "many", 200'000, 50257);
    const auto rank = [&] {
      be_rank(folder, sizes[0], sizes[1], sizes[2]);
      return 0;
    };
    const int status = runtime::launch(rank, {2, Seconds(5)}).status;
    fs::remove_all(folder);
    return status;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rehearse: {}\n", error.what());
    return 1;
  }
}
