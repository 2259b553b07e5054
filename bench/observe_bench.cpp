// Measures the cost of observing gradients for their variance (Sun 2026, eq. 2): the time of the
// observe kernels as a share of a warm-up step of 1,024 tokens per rank, from the executor's
// timestamps. One process, one thread. Arguments: model, stride (default: that of a warm-up),
// steps.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/figure.h"
#include "engine/base/errors.h"
#include "engine/execution/trace/trace.h"
#include "engine/job/job.h"
#include "engine/tensors/variance.h"
#include "runtime/training/train.h"

namespace {

using namespace rehearse;
namespace fs = std::filesystem;

constexpr int tokens_a_rank = 1024;

void write_tokens(const fs::path& file, int count) {
  std::vector<std::int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = count;
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(header.data()), 1024);
  std::uint32_t state = 1;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    const auto token = static_cast<std::uint16_t>((state >> 8) % 500);
    out.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
}

/// Whether the op is an observe kernel.
bool observes(const program::Op& op) {
  const auto* kernel = std::get_if<program::Kernel>(&op.work);
  return kernel != nullptr && kernel->kind == program::KernelKind::observe;
}

void measure(const std::string& model, int stride, int steps, const fs::path& folder) {
  constexpr int seq_len = 128;
  job::Job job = job::parse_job(
      fmt::format("model.name = \"{}\"\ncluster.name = \"this-machine:1\"\nmethod.name = \"ddp\"\n"
                  "train = {{ seq_len = {}, global_batch = {}, steps = {}, data = \"{}\" }}\n"
                  "run.threads = 1\n",
                  model, seq_len, tokens_a_rank / seq_len, steps, folder.string()),
      "bench");
  job.train.out.clear();
  job.plan.exchange.observe = stride;
  execution::Recording recording;
  runtime::TrainOptions options{.trace_steps = steps, .quiet = true};
  options.sink = &recording;
  const runtime::TrainSummary summary = train(job, {}, options);
  const program::Program program = program_of(job);
  double observing = 0;
  int kernels = 0;
  for (const execution::Interval& i : recording.intervals)
    if (i.step > 0 && observes(program.roles[0].ops[i.op])) observing += i.end - i.start, ++kernels;
  observing /= steps - 1;
  fmt::print(
      "{}, {} tokens, stride at most {}: {} kernels a step, {:.3f} ms of {:.1f} ms, {:.2f}%\n",
      model, tokens_a_rank, stride, kernels / (steps - 1), 1e3 * observing,
      1e3 * summary.median_step_s, 100 * observing / summary.median_step_s);
  bench::record({.name = "observing gradients, share of a warm-up step",
                 .measured = 100 * observing / summary.median_step_s,
                 .unit = "%",
                 .against = "goal",
                 .reference = 2});
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = (fs::temp_directory_path() / "rehearse-bench-XXXXXX").string();
  try {
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no temporary folder");
    write_tokens(fs::path(folder) / "bench_train_000.bin", 100'000);
    measure(argc > 1 ? argv[1] : "gpt-demo",
            argc > 2 ? std::atoi(argv[2]) : tensors::default_observe_stride,
            argc > 3 ? std::atoi(argv[3]) : 6, folder);
    fs::remove_all(folder);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    fs::remove_all(folder);
    return 1;
  }
}
