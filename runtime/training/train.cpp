#include "runtime/training/train.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/base/errors.h"
#include "engine/methods/strategy.h"
#include "engine/planner/planner.h"
#include "runtime/checkpoints/checkpoint.h"
#include "runtime/checkpoints/huggingface.h"
#include "runtime/checkpoints/run_folder.h"
#include "runtime/communication/network.h"
#include "runtime/control/control.h"
#include "runtime/control/stop_on_signal.h"
#include "runtime/control/together.h"
#include "runtime/data/data.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/variance.h"
#include "runtime/training/placed.h"
#include "runtime/training/progress.h"
#include "runtime/training/replan.h"
#include "runtime/training/run_start.h"

namespace rehearse::runtime {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void set_threads(const job::Job& job, const Environment& environment) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  at::set_num_threads(job.run.threads > 0 ? job.run.threads
                                          : std::max(1, cores / environment.local_world_size));
  // Activations are allocated and freed in every step. Keep their pages instead of requesting them
  // from the kernel each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
}

DataSettings data_settings(const job::Job& job) {
  return {
      .path = job.train.data,
      .objective = job.model.family == model::Family::bert ? Objective::masked : Objective::causal,
      .seq_len = job.model.seq_len,
      .global_batch = job.plan.schedule.global_batch,
      .vocab = job.model.vocab,
      .seed = job.train.seed};
}

/// Names ops of the current plan for messages of the control plane, which runs on another thread.
class OpNames {
 public:
  void set(std::shared_ptr<const LinkedPlan> plan) {
    const std::lock_guard lock(mutex_);
    plan_ = std::move(plan);
  }
  std::string operator()(Id process, Id op) const {
    const std::lock_guard lock(mutex_);
    if (plan_ == nullptr) return "";
    const link::LinkedProgram& linked = plan_->linked;
    const program::Role& role =
        linked.program.roles.at(linked.role_of.at(plan_->plays.at(process)));
    return op < role.ops.size() ? to_text(linked.program, role, op) : std::string();
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const LinkedPlan> plan_ = {};
};

ControlOptions control_options(const job::Job& job, const OpNames& described) {
  return {.timeout = job.run.timeout,
          .heartbeat = job.run.heartbeat,
          .join = job.run.connect_timeout,
          .describe = [&described](Id process, Id op) { return described(process, op); }};
}

/// The next step before which the run stops to evaluate or save, or the end of the run.
std::int64_t next_boundary(const job::Train& train, std::int64_t step) {
  std::int64_t next = train.steps;
  for (const std::int64_t every : {train.eval_every, train.save_every})
    if (every > 0) next = std::min(next, (step / every + 1) * every);
  return next;
}

class Trainer {
 public:
  Trainer(const job::Job& job, const TrainOptions& options, std::shared_ptr<const LinkedPlan> plan,
          int placements, const RunStart& start, const Data& data, Control& control,
          const StopOnSignal& stop, OpNames& described)
      : job_(job),
        options_(options),
        start_(start),
        data_(data),
        control_(control),
        stop_(stop),
        described_(described),
        network_(control, {.transport = job.run.transport}),
        trace_(options.trace, job.model, options.sink, control),
        parts_{data, network_, control, job.plan.placement.rank_to_device,
               traced() ? &trace_ : nullptr},
        current_(std::make_unique<PlacedPlan>(std::move(plan), placements, parts_)),
        progress_(job, current_->plan->linked, data, control, options.quiet) {}

  TrainSummary run() {
    const job::Train& train = job_.train;
    TrainSummary summary;
    std::int64_t step = begin();
    prepare_folder(step);
    keep_stamps();
    summary.first_step = observed_from_ = step;
    if (start_.within) summary.checkpoint = start_.checkpoint;
    bool ended = step >= train.steps;
    while (!ended) {
      const std::int64_t boundary = next_stop(step);
      const std::int64_t end = replan(step, summary) ? run_until(step, boundary) : step;
      progress_.drain(end);
      ended = end < boundary || end >= train.steps;
      step = end;
      if (at(train.eval_every, step) || (ended && end == train.steps))
        summary.validation_loss = validate(step);
      // A resumed run that has not run a step yet still has the checkpoint it was resumed from.
      const bool moved = step > summary.first_step || !start_.within;
      if ((at(train.save_every, step) || ended) && moved) save(step, summary);
    }
    summary.end_step = step;
    gather_observed(step, summary);
    summary.signal = control_.last_step() ? stop_.first() : 0;
    add_trace();
    trace_.close();
    summary.bytes_sent = sent_before_ + current_->executor.bytes_sent();
    progress_.summarise(summary);
    progress_.finish(summary);
    return summary;
  }

 private:
  bool traced() const { return !options_.trace.empty() || options_.sink != nullptr; }
  static bool at(std::int64_t every, std::int64_t step) { return every > 0 && step % every == 0; }

  /// Fills the state from the seed, a checkpoint or imported weights. Returns the first step.
  std::int64_t begin() {
    std::int64_t step = 0;
    current_->executor.initialise();
    together(control_, "state to begin with", [&] {
      if (!start_.checkpoint.empty()) {
        reading_checkpoint(start_.checkpoint, [&] {
          step = load_checkpoint(start_.checkpoint, current_->context, current_->executor);
        });
      } else if (!options_.import_weights.empty()) {
        import_gpt2(options_.import_weights, current_->context, current_->executor);
      }
    });
    return step;
  }

  /// Makes train.out ready for writing. Comes after every check that may refuse the job, so that a
  /// refused run changes nothing there.
  void prepare_folder(std::int64_t step) {
    const std::string& folder = job_.train.out;
    together(control_, "begin of the run", [&] {
      if (folder.empty() || control_.environment().rank != 0) return;
      if (start_.within)
        rewind_run(folder, step);
      else if (options_.overwrite)
        remove_run(folder);
      progress_.open(folder);
    });
  }

  /// The next step before which the run stops to evaluate, to save or to ask the policy.
  std::int64_t next_stop(std::int64_t step) const {
    std::int64_t next = next_boundary(job_.train, step);
    if (options_.policy == nullptr) return next;
    if (const auto due = options_.policy->next(step + 1, current_->number))
      next = std::min(next, *due);
    return next;
  }

  /// Asks the policy if it is due, and changes the plan if the policy wants another. False: the run
  /// ends before this step.
  bool replan(std::int64_t step, TrainSummary& summary) {
    if (options_.policy == nullptr || options_.policy->next(step, current_->number) != step)
      return true;
    const std::int64_t steps = step - asked_step_;
    const double busy = current_->executor.compute_seconds() - asked_busy_;
    gather_observed(step, summary);
    const std::optional<plan::Plan> plan =
        consult(*options_.policy, *current_,
                {.step = step,
                 .step_times = progress_.times_since(asked_step_),
                 .variances = summary.variances},
                steps > 0 ? busy / static_cast<double>(steps) : -1, control_);
    asked_step_ = step, asked_busy_ = current_->executor.compute_seconds();
    return !plan || place(*plan, step, summary);
  }

  /// Stores the gradient variances that the current plan observed. Keeps those of an earlier plan
  /// if the current one observes none.
  void gather_observed(std::int64_t step, TrainSummary& summary) {
    try {
      auto found = gather_variances(current_->context, current_->executor, observed_from_, step);
      if (!found.empty()) summary.variances = std::move(found);
    } catch (const InputError& error) {
      throw BackendError(error.what());  // not an input error: steps have already run
    }
  }

  bool place(const plan::Plan& plan, std::int64_t step, TrainSummary& summary) {
    const auto next = std::make_shared<const LinkedPlan>(job_, plan, parts_.devices);
    control_.agree("program", fmt::format("{:016x}", next->linked.hash));
    add_trace();
    auto placed = std::make_unique<PlacedPlan>(next, current_->number + 1, parts_);
    described_.set(nullptr);
    const MigrationRun migration = migrate_state(*current_, *placed, step, parts_);
    if (!migration.ran) return false;
    described_.set(next);
    sent_before_ += current_->executor.bytes_sent() + migration.sent_by_rank;
    current_ = std::move(placed);
    asked_busy_ = 0;
    observed_from_ = step;
    keep_stamps();
    summary.replacements.push_back({.step = step,
                                    .plan = plan.method + ": " + planner::summary_of(plan),
                                    .seconds = migration.seconds,
                                    .bytes = migration.sent_bytes});
    progress_.replaced(summary.replacements.back());
    return true;
  }

  std::int64_t run_until(std::int64_t step, std::int64_t boundary) {
    // A free-running rank has no last step: it runs until the ranks that it works for have ended.
    Executor& executor = current_->executor;
    const bool free = executor.role().free_running;
    progress_.begin(step, boundary);
    const std::int64_t end =
        executor.run(step, free ? std::numeric_limits<std::int32_t>::max() : boundary,
                     [&](std::int64_t done, const StepLoss& loss) {
                       progress_.step(done, loss, executor.counts());
                     });
    if (!current_->plan->linked.mailboxes) return end;
    // The ranks that are not free-running count the run's steps; take the end from the first of
    // them.
    const std::vector<std::string> ends =
        control_.gather(fmt::format("end of the run from step {}", step),
                        free ? std::string() : std::to_string(end));
    for (const std::string& one : ends)
      if (!one.empty()) return std::stoll(one);
    return end;
  }

  double validate(std::int64_t step) {
    if (data_.validation_windows() == 0) return std::numeric_limits<double>::quiet_NaN();
    const double began = now();
    const std::int64_t batches = job_.train.eval_batches;
    const double mine = current_->executor.evaluate(step, batches);
    double sum = 0;
    for (const std::string& one :
         control_.gather(fmt::format("validation {}", step), fmt::format("{:.17g}", mine)))
      sum += std::stod(one);
    const double loss = sum / static_cast<double>(data_.validation_labels(
                                  0, batches * job_.plan.schedule.global_batch));
    progress_.validation(step, loss, now() - began);
    return loss;
  }

  void save(std::int64_t step, TrainSummary& summary) {
    if (job_.train.out.empty()) return;
    const double began = now();
    PlanRecord record{.placements = current_->number};
    if (record.placements > 0) record.plan = plan_text(current_->plan->job.plan, job_);
    save_checkpoint(job_.train.out, step, current_->context, current_->executor, record);
    summary.checkpoint = checkpoint_path(job_.train.out, step);
    progress_.saved(step, summary.checkpoint, now() - began);
  }

  /// Traces the first steps under the current plan.
  void keep_stamps() {
    if (traced())
      current_->executor.keep_stamps(current_->executor.role().ops.size() * options_.trace_steps);
  }
  void add_trace() {
    if (traced())
      trace_.add(current_->plan->linked, current_->executor,
                 current_->number == 0 ? "" : fmt::format("plan {}", current_->number + 1));
  }

  const job::Job& job_;
  const TrainOptions& options_;
  const RunStart& start_;
  const Data& data_;
  Control& control_;
  const StopOnSignal& stop_;
  OpNames& described_;
  Network network_;
  TraceFile trace_;
  RunParts parts_;
  std::unique_ptr<PlacedPlan> current_;
  Progress progress_;
  std::int64_t sent_before_ = 0;    // bytes sent under earlier plans and by migrations
  std::int64_t asked_step_ = 0;     // the step at which the policy was last asked
  std::int64_t observed_from_ = 0;  // the first step under the current plan
  double asked_busy_ = 0;           // the executor's compute_seconds() at asked_step_
};

}  // namespace

TrainSummary train(const job::Job& job, const Environment& environment,
                   const TrainOptions& options) {
  if (environment.world_size != job.plan.mesh.world_size())
    throw InputError(fmt::format(
        "the job's mesh needs {} ranks (pp {} x dp {} x tp {} + {} servers), {} were started",
        job.plan.mesh.world_size(), job.plan.mesh.pp, job.plan.mesh.dp, job.plan.mesh.tp,
        job.plan.mesh.servers, environment.world_size));
  set_threads(job, environment);
  plan::Plan first = job.plan;
  int placements = 0;
  std::shared_ptr<const LinkedPlan> plan;
  const auto link_first = [&] {
    plan = std::make_shared<const LinkedPlan>(job, first, job.plan.placement.rank_to_device);
  };
  link_first();
  if (job.train.data.empty())
    throw InputError(
        "train.data is missing: the folder of token shards that data/prepare.py makes");
  const Data data(data_settings(job));

  OpNames described;
  described.set(plan);
  Control control(environment, control_options(job, described));
  const StopOnSignal stop(control);
  try {
    const RunStart start = find_start(job, options, control);
    if (!start.checkpoint.empty() && options.policy != nullptr)
      if (const PlanRecord record = resumed_plan(start.checkpoint, job); record.placements > 0) {
        placements = record.placements;
        first = plan_from(record.plan, start.checkpoint, job);
        link_first();
        described.set(plan);
      }
    control.agree("program", fmt::format("{:016x}", plan->linked.hash));
    TrainSummary summary =
        Trainer(job, options, plan, placements, start, data, control, stop, described).run();
    control.finish();
    return summary;
  } catch (const std::exception& error) {
    control.fail(error.what());
    throw;
  }
}

}  // namespace rehearse::runtime
