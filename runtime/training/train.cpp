#include "runtime/training/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/fnv.h"
#include "engine/methods/strategy.h"
#include "engine/planner/planner.h"
#include "runtime/checkpoints/checkpoint.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/checkpoints/huggingface.h"
#include "runtime/communication/network.h"
#include "runtime/control/control.h"
#include "runtime/control/launch/stop_on_signal.h"
#include "runtime/control/together.h"
#include "runtime/data/data.h"
#include "runtime/device/accelerator.h"
#include "runtime/device/load_device.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/fault_injector.h"
#include "runtime/executor/variance.h"
#include "runtime/training/checker.h"
#include "runtime/training/evaluation.h"
#include "runtime/training/node_death.h"
#include "runtime/training/op_names.h"
#include "runtime/training/placed.h"
#include "runtime/training/progress.h"
#include "runtime/training/replan.h"
#include "runtime/training/run_start.h"
#include "runtime/training/saver.h"

namespace rehearse::runtime {
namespace {

/// What train() has made ready before the first step. It outlives the Trainer.
struct Ready {
  const job::Job& job;
  const TrainOptions& options;
  const RunStart& start;
  const NodeStore& store;
  const EvaluationData& data;
  Control& control;
  const StopOnSignal& stop;
  OpNames& described;  // the names of the ops that run
};

class Trainer {
 public:
  Trainer(const Ready& in, std::shared_ptr<const LinkedPlan> plan, int placements)
      : ready_(in),
        device_(make_device(in.job.run.device, in.control.environment().rank, &in.control)),
        network_(in.control, {.transport = in.job.run.transport}),
        trace_(in.options.trace, in.job.model, in.options.sink, in.control),
        faults_(in.options.faults == nullptr
                    ? nullptr
                    : std::make_unique<FaultInjector>(*in.options.faults, place_of(in.job, rank()),
                                                      in.job.train.out)),
        parts_{in.data.own,
               network_,
               in.control,
               *device_,
               in.job.plan.placement.rank_to_device,
               traced() ? &trace_ : nullptr,
               faults_.get()},
        current_(std::make_unique<PlacedPlan>(std::move(plan), placements, parts_)),
        progress_(in.job, current_->plan->linked, in.data.own, in.control, in.options.quiet),
        evaluation_(in.job, in.data, in.control, progress_),
        checker_(in.job, in.control),
        between_(network_.communicator("files of checkpoints", all_ranks(in.control))),
        files_(in.control.lane("checkpoint")),
        saver_(in.job, in.store, *between_, files_, progress_, faults_.get()) {
    saver_.use(*current_);
    for (const std::string& sentence : about_device(in.job, *device_, current_->executor))
      progress_.say(sentence);
    if (faults_ != nullptr)
      faults_->on_node_death([this] { lose_node(ready_.job, ready_.store, ready_.control); });
  }

  TrainSummary run() {
    const job::Train& train = ready_.job.train;
    TrainSummary summary;
    std::int64_t step = begin();
    ready_.control.start_at(step, current_->executor.role().free_running);
    prepare_folder(step);
    check(step);
    keep_stamps();
    if (ready_.options.began && ready_.control.environment().rank == 0) ready_.options.began(step);
    summary.first_step = observed_from_ = step;
    if (ready_.start.within) summary.checkpoint = ready_.start.checkpoint;
    bool ended = step >= train.steps;
    while (!ended) {
      const std::int64_t boundary = next_stop(step);
      const std::int64_t end = replan(step, summary) ? run_until(step, boundary, summary) : step;
      progress_.drain(end);
      ended = end < boundary || end >= train.steps;
      step = end;
      if (at(ready_.job.run.check_every, step) || at(train.save_every, step) || ended) check(step);
      if (at(train.eval_every, step) || (ended && end == train.steps)) evaluate(step, summary);
      // A resumed run that has not run a step yet still has the checkpoint it was resumed from.
      const bool moved = step > summary.first_step || !ready_.start.within;
      if ((at(train.save_every, step) || ended) && moved) saver_.save(step, ended, summary);
    }
    if (leads_node() && !train.out.empty()) {
      std::error_code ignored;  // with what nodes have left here that are not in the run any more
      std::filesystem::remove_all(ready_.store.root(), ignored);
    }
    summary.end_step = step;
    if (faults_ != nullptr && step >= train.steps)
      tell_not_struck(*faults_, ready_.job, step, ready_.control);
    gather_observed(step, summary);
    if (ready_.control.last_step()) {
      summary.signal = ready_.stop.first();
      summary.drained = step < train.steps && asked_to_drain();
    }
    add_trace();
    trace_.close();
    summary.bytes_sent = sent_before_ + current_->executor.bytes_sent();
    if (Accelerator* const accelerator = device_->accelerator())
      summary.peak_device_bytes = accelerator->peak_bytes();
    progress_.summarise(summary);
    progress_.finish(summary);
    return summary;
  }

 private:
  Id rank() const { return static_cast<Id>(ready_.control.environment().rank); }
  bool leads_node() const {
    return ready_.store.used() && ready_.store.leader_of(rank()) == rank();
  }
  static std::vector<Id> all_ranks(const Control& control) {
    std::vector<Id> ranks(static_cast<std::size_t>(control.environment().world_size));
    std::iota(ranks.begin(), ranks.end(), Id{0});
    return ranks;
  }
  bool traced() const { return !ready_.options.trace.empty() || ready_.options.sink != nullptr; }
  static bool at(std::int64_t every, std::int64_t step) { return every > 0 && step % every == 0; }

  /// Fills the state from the seed, a checkpoint or imported weights. Returns the first step.
  std::int64_t begin() {
    std::int64_t step = 0;
    Executor& executor = current_->executor;
    for (const PassedOver& one : ready_.start.passed) progress_.say(describe(one));
    files_.enter(LaneState::communicating, 0, none);
    const auto alive = [&] { files_.pulse(); };
    if (ready_.start.held.newest)
      collect(ready_.store, ready_.start.held, ready_.control, *between_, files_);
    const auto load = [&] {
      if (faults_ != nullptr && ready_.start.within)
        faults_->recovering(read_manifest(ready_.start.checkpoint).step);
      const double slow = faults_ ? faults_->disk_slowdown(!ready_.start.held.newest) : 1;
      step = load_checkpoint(ready_.start.checkpoint, current_->context, executor,
                             {.without = ready_.job.recovery.without,
                              .slowdown = slow,
                              .tell = [&](const std::string& text) { progress_.say(text); },
                              .alive = alive});
    };
    const auto fill = [&] {
      if (!ready_.start.checkpoint.empty()) {
        executor.clear();  // drawing weights that the checkpoint has would take time
        reading_checkpoint(ready_.start.checkpoint, load, alive);
        return;
      }
      executor.initialise(alive);
      if (!ready_.options.import_weights.empty())
        import_weights(ready_.options.import_weights, current_->context, executor, alive);
    };
    together(ready_.control, "state to begin with", fill, &files_);
    files_.become(LaneState::idle);
    return step;
  }

  /// Makes train.out ready for writing. Comes after every check that may refuse the job, so that a
  /// refused run changes nothing there.
  void prepare_folder(std::int64_t step) {
    const std::string& folder = ready_.job.train.out;
    together(ready_.control, "begin of the run", [&] {
      if (leads_node())
        rewind_node(ready_.store.folder_of(rank()), ready_.start.within ? step : -1);
      if (folder.empty() || rank() != 0) return;
      if (ready_.start.within)
        rewind_run(folder, step, ready_.job.run.check_every > 0);
      else if (ready_.options.overwrite)
        remove_run(folder);
      progress_.open(folder);
    });
  }

  /// Compares what replicas hold, before anything of it is saved.
  void check(std::int64_t step) {
    if (ready_.job.run.check_every == 0) return;
    checker_.check(step, *current_);
    progress_.checked(step);
  }

  /// The next step before which the run stops to evaluate, to save or to ask the policy.
  std::int64_t next_stop(std::int64_t step) const {
    std::int64_t next = next_boundary(ready_.job, step);
    if (ready_.options.policy == nullptr) return next;
    if (const auto due = ready_.options.policy->next(step + 1, current_->number))
      next = std::min(next, *due);
    return next;
  }

  /// Asks the policy if it is due, and changes the plan if the policy wants another. False: the run
  /// ends before this step.
  bool replan(std::int64_t step, TrainSummary& summary) {
    if (ready_.options.policy == nullptr ||
        ready_.options.policy->next(step, current_->number) != step)
      return true;
    const std::int64_t steps = step - asked_step_;
    const double busy = current_->executor.compute_seconds() - asked_busy_;
    gather_observed(step, summary);
    const std::optional<plan::Plan> plan =
        consult(*ready_.options.policy, *current_,
                {.step = step,
                 .step_times = progress_.times_since(asked_step_),
                 .variances = summary.variances},
                steps > 0 ? busy / static_cast<double>(steps) : -1, ready_.control);
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
    const auto next = std::make_shared<const LinkedPlan>(ready_.job, plan, parts_.devices);
    ready_.control.agree("program", hash_text(hash_of(next->linked.program)));
    add_trace();
    auto placed = std::make_unique<PlacedPlan>(next, current_->number + 1, parts_);
    ready_.described.set(nullptr);
    const MigrationRun migration = migrate_state(*current_, *placed, step, parts_);
    if (!migration.ran) return false;
    ready_.described.set(next);
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

  std::int64_t run_until(std::int64_t step, std::int64_t boundary, TrainSummary& summary) {
    // A free-running rank has no last step: it runs until an answer tells it to end.
    Executor& executor = current_->executor;
    const bool free = executor.role().free_running;
    progress_.steps_begin_at(step);
    saver_.use(*current_);
    const std::int64_t end =
        executor.run(step, free ? std::numeric_limits<std::int32_t>::max() : boundary,
                     [&](std::int64_t done, const StepLoss& loss) {
                       saver_.tell(summary);
                       progress_.step(done, loss, executor.counts(), executor.compute_seconds());
                       mind_slow_ranks();
                     });
    if (!current_->plan->linked.mailboxes) return end;
    // The ranks that are not free-running count the run's steps; take the end from the first of
    // them.
    const std::vector<std::string> ends =
        ready_.control.gather(fmt::format("end of the run from step {}", step),
                              free ? std::string() : std::to_string(end));
    for (const std::string& one : ends)
      if (!one.empty()) return std::stoll(one);
    return end;
  }

  void mind_slow_ranks() {
    if (const auto why = progress_.eviction()) {
      if (ready_.options.evicted) ready_.options.evicted();
      throw BackendError(*why);
    }
    const auto slow = progress_.overloaded();
    if (!slow) return;
    const std::string why = fmt::format("rank {}: {}", slow->rank,
                                        slowness(slow->factor, ready_.job.recovery.slow_factor));
    if (const auto shares = balanced_shares(*slow, *current_))
      ready_.options.unbalanced(why, *shares);
    else
      progress_.say(why + "; other shares would not make steps shorter");
  }

  void evaluate(std::int64_t step, TrainSummary& summary) const {
    Losses losses = evaluation_.run(step, current_->executor);
    summary.validation_loss = losses.validation;
    summary.evaluated = std::move(losses.others);
  }

  /// Whether the launcher has asked any rank to drain: its signal may reach another one too late.
  bool asked_to_drain() {
    const auto all = ready_.control.gather("drained", StopOnSignal::drained() ? "yes" : "no");
    return std::ranges::count(all, "yes") > 0;
  }

  /// Traces the first steps under the current plan.
  void keep_stamps() {
    if (traced())
      current_->executor.keep_stamps(current_->executor.role().ops.size() *
                                     ready_.options.trace_steps);
  }
  void add_trace() {
    if (traced())
      trace_.add(current_->plan->linked, current_->executor,
                 current_->number == 0 ? "" : fmt::format("plan {}", current_->number + 1));
  }

  Ready ready_;
  std::unique_ptr<Device> device_;
  Network network_;
  TraceFile trace_;
  std::unique_ptr<FaultInjector> faults_;
  RunParts parts_;
  std::unique_ptr<PlacedPlan> current_;
  Progress progress_;
  Evaluation evaluation_;
  Checker checker_;
  std::unique_ptr<Communicator> between_;
  LaneProgress& files_;  // reads and writes outside of steps: weights to begin with, checkpoints
  Saver saver_;
  std::int64_t sent_before_ = 0;    // bytes sent under earlier plans and by migrations
  std::int64_t asked_step_ = 0;     // the step at which the policy was last asked
  std::int64_t observed_from_ = 0;  // the first step under the current plan
  double asked_busy_ = 0;           // the executor's compute_seconds() at asked_step_
};

}  // namespace

TrainSummary train(const job::Job& job, const Environment& environment,
                   const TrainOptions& options) {
  check_ranks(job, environment);
  set_threads(job, environment);
  plan::Plan first = job.plan;
  int placements = 0;
  std::shared_ptr<const LinkedPlan> plan;
  const auto link_first = [&] {
    plan = std::make_shared<const LinkedPlan>(job, first, job.plan.placement.rank_to_device);
  };
  link_first();
  check_trainable(job, plan->linked);
  const EvaluationData data(job);

  OpNames described;
  described.set(plan);
  ControlOptions watch = control_options(job, described);
  watch.lost = options.lost;
  Control control(environment, std::move(watch));
  const StopOnSignal stop(control);
  try {
    const NodeStore store(job);
    const RunStart start = find_start(job, options, store, control);
    if (!start.checkpoint.empty() && options.policy != nullptr)
      if (const PlanRecord record = resumed_plan(start.checkpoint, job); record.placements > 0) {
        placements = record.placements;
        first = plan_from(record.plan, start.checkpoint, job);
        link_first();
        described.set(plan);
      }
    control.agree("program", hash_text(hash_of(plan->linked.program)));
    TrainSummary summary =
        Trainer({job, options, start, store, data, control, stop, described}, plan, placements)
            .run();
    control.finish();
    return summary;
  } catch (const std::exception& error) {
    control.fail(error.what());
    throw;
  }
}

}  // namespace rehearse::runtime
