#include "runtime/train.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <memory>
#include <thread>

#include "engine/chrome_trace.h"
#include "engine/errors.h"
#include "engine/fit.h"
#include "engine/strategy.h"
#include "engine/workspace.h"
#include "runtime/checkpoint.h"
#include "runtime/control.h"
#include "runtime/data.h"
#include "runtime/executor.h"
#include "runtime/huggingface.h"
#include "runtime/network.h"
#include "runtime/progress.h"
#include "runtime/trace_gather.h"
#include "runtime/variance.h"

namespace rehearse {
namespace {

namespace fs = std::filesystem;

// A handler may touch nothing else.
std::atomic<Control*> stop_target = nullptr;
std::atomic<int> stop_signal = 0;

void on_signal(int signal) {
  stop_signal = signal;
  if (Control* control = stop_target.load()) control->request_stop();
}

/// SIGINT and SIGTERM end the run at the end of a step while this lives; a second one kills.
class StopOnSignal {
 public:
  explicit StopOnSignal(Control& control) {
    stop_target = &control;
    stop_signal = 0;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
  }
  ~StopOnSignal() {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
    stop_target = nullptr;
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  struct sigaction old_int_ = {}, old_term_ = {};
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void set_threads(const Job& job, const Environment& environment) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  at::set_num_threads(job.run.threads > 0 ? job.run.threads
                                          : std::max(1, cores / environment.local_world_size));
  // Activations come and go every step: keep their pages instead of asking the kernel each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
}

void prepare_folder(const Job& job, const Environment& environment) {
  if (job.train.out.empty() || environment.rank != 0) return;
  std::error_code error;
  fs::create_directories(job.train.out, error);
  const fs::path probe = fs::path(job.train.out) / ".writable";
  if (!error && std::ofstream(probe).put('\n')) {
    fs::remove(probe, error);
    return;
  }
  throw InputError(fmt::format("train.out = \"{}\": cannot write there{}", job.train.out,
                               error ? ": " + error.message() : std::string()));
}

DataSettings data_settings(const Job& job) {
  return {.path = job.train.data,
          .objective = job.model.family == Family::bert ? Objective::masked : Objective::causal,
          .seq_len = job.model.seq_len,
          .global_batch = job.plan.global_batch,
          .vocab = job.model.vocab,
          .seed = job.train.seed};
}

ControlOptions control_options(const Job& job, const LinkedProgram& linked) {
  return {.timeout = job.run.timeout,
          .heartbeat = job.run.heartbeat,
          .join = job.run.connect_timeout,
          .describe = [&linked](Id rank, Id op) {
            const Role& role = linked.program.roles.at(linked.role_of.at(rank));
            return op < role.ops.size() ? to_text(linked.program, role, op) : std::string();
          }};
}

/// The boundary of steps at which something is to be done besides training.
std::int64_t next_boundary(const Train& train, std::int64_t step) {
  std::int64_t next = train.steps;
  for (const std::int64_t every : {train.eval_every, train.save_every})
    if (every > 0) next = std::min(next, (step / every + 1) * every);
  return next;
}

class Trainer {
 public:
  Trainer(const Job& job, const TrainOptions& options, const LinkedProgram& linked,
          const Data& data, Control& control)
      : job_(job),
        options_(options),
        linked_(linked),
        data_(data),
        control_(control),
        network_(control, {.node_of = {}}),
        disturber_(job.disturb, job.plan.world_size()),
        context_{
            linked, job.model, job.plan, job.train,  static_cast<Id>(control.environment().rank),
            data,   network_,  control,  &disturber_},
        executor_(context_),
        progress_(job, linked, data, control, options.quiet) {}

  TrainSummary run() {
    const Train& train = job_.train;
    TrainSummary summary;
    executor_.initialise();
    if (!options_.import_weights.empty() && !options_.resume)
      import_gpt2(options_.import_weights, context_, executor_);
    std::int64_t step = 0;
    if (options_.resume)
      step = load_checkpoint(
          find_checkpoint(options_.resume_from.empty() ? train.out : options_.resume_from),
          context_, executor_);
    control_.agree("first step", std::to_string(step));
    const bool traced = !options_.trace.empty() || options_.sink != nullptr;
    if (traced) executor_.keep_stamps(executor_.role().ops.size() * options_.trace_steps);
    const StopOnSignal stop(control_);
    summary.first_step = step;
    summary.validation_loss = std::numeric_limits<double>::quiet_NaN();
    bool ended = step >= train.steps;
    while (!ended) {
      const std::int64_t boundary = next_boundary(train, step);
      const std::int64_t end = run_until(step, boundary);
      progress_.drain(end);
      ended = end < boundary || end >= train.steps;
      step = end;
      if (at(train.eval_every, step) || (ended && end == train.steps))
        summary.validation_loss = validate(step);
      if (at(train.save_every, step) || ended) save(step, summary);
    }
    summary.end_step = step;
    summary.variances = gather_variances(context_, executor_, summary.first_step, step);
    summary.signal = control_.last_step() ? stop_signal.load() : 0;
    if (traced) trace();
    summary.bytes_sent = executor_.bytes_sent();
    progress_.summarise(summary);
    progress_.finish(summary);
    return summary;
  }

 private:
  std::int64_t run_until(std::int64_t step, std::int64_t boundary) {
    // A free-running rank goes on until those it serves have had enough.
    const bool free = executor_.role().free_running;
    progress_.begin(step, boundary);
    const std::int64_t end =
        executor_.run(step, free ? std::numeric_limits<std::int32_t>::max() : boundary,
                      [&](std::int64_t done, const StepLoss& loss) {
                        progress_.step(done, loss, executor_.counts());
                      });
    if (!linked_.mailboxes) return end;
    // How far the run has come is what those say who count its steps.
    const std::vector<std::string> ends =
        control_.gather(fmt::format("end of the run from step {}", step),
                        free ? std::string() : std::to_string(end));
    for (const std::string& one : ends)
      if (!one.empty()) return std::stoll(one);
    return end;
  }

  static bool at(std::int64_t every, std::int64_t step) { return every > 0 && step % every == 0; }

  double validate(std::int64_t step) {
    if (data_.validation_windows() == 0) return std::numeric_limits<double>::quiet_NaN();
    const double began = now();
    const std::int64_t batches = job_.train.eval_batches;
    const double mine = executor_.evaluate(step, batches);
    double sum = 0;
    for (const std::string& one :
         control_.gather(fmt::format("validation {}", step), fmt::format("{:.17g}", mine)))
      sum += std::stod(one);
    const double loss =
        sum / static_cast<double>(data_.validation_labels(0, batches * job_.plan.global_batch));
    progress_.validation(step, loss, now() - began);
    return loss;
  }

  void save(std::int64_t step, TrainSummary& summary) {
    if (job_.train.out.empty()) return;
    const double began = now();
    save_checkpoint(job_.train.out, step, context_, executor_);
    summary.checkpoint = (fs::path(job_.train.out) / fmt::format("step-{:08}", step)).string();
    progress_.saved(step, summary.checkpoint, now() - began);
  }

  void trace() {
    std::unique_ptr<ChromeTrace> chrome;
    std::vector<TraceSink*> sinks;
    if (context_.rank == 0 && !options_.trace.empty()) {
      chrome = std::make_unique<ChromeTrace>(options_.trace, linked_);
      sinks.push_back(chrome.get());
    }
    if (options_.sink != nullptr) sinks.push_back(options_.sink);
    Tee tee(sinks);
    gather_trace(linked_, executor_, control_, "trace", &tee);
    if (chrome != nullptr) chrome->close();
  }

  const Job& job_;
  const TrainOptions& options_;
  const LinkedProgram& linked_;
  const Data& data_;
  Control& control_;
  Network network_;
  Disturber disturber_;
  ExecutorContext context_;
  Executor executor_;
  Progress progress_;
};

}  // namespace

TrainSummary train(const Job& job, const Environment& environment, const TrainOptions& options) {
  if (environment.world_size != job.plan.world_size())
    throw InputError(fmt::format(
        "the job's mesh needs {} ranks (pp {} x dp {} x tp {} + {} servers), {} were started",
        job.plan.world_size(), job.plan.pp, job.plan.dp, job.plan.tp, job.plan.servers,
        environment.world_size));
  set_threads(job, environment);
  const LinkedProgram linked = link(compile(job), job.model);
  check_memory(linked, job.plan, job.model, job.cluster);
  if (job.train.data.empty())
    throw InputError(
        "train.data is missing: the folder of token shards that data/prepare.py makes");
  const Data data(data_settings(job));
  prepare_folder(job, environment);
  if (options.resume)
    find_checkpoint(options.resume_from.empty() ? job.train.out : options.resume_from);

  Control control(environment, control_options(job, linked));
  try {
    control.agree("program", fmt::format("{:016x}", linked.hash));
    TrainSummary summary = Trainer(job, options, linked, data, control).run();
    control.finish();
    return summary;
  } catch (const std::exception& error) {
    control.fail(error.what());
    throw;
  }
}

}  // namespace rehearse
