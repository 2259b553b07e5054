// Shows the progress of a run: a live line on a terminal, plain lines elsewhere, and one line of
// JSON for each step in metrics.jsonl. Rank 0 collects reports from all ranks; it prints a step
// when all reports of the step have arrived.
#pragma once
#include <cstdint>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/job.h"
#include "engine/link/link.h"
#include "runtime/checkpoints/files/manifest.h"
#include "runtime/control/control.h"
#include "runtime/data/data.h"
#include "runtime/executor/executor.h"
#include "runtime/training/slow_ranks.h"
#include "runtime/training/train.h"

namespace rehearse::runtime {

class Progress {
 public:
  Progress(const job::Job& job, const link::LinkedProgram& linked, const Data& data,
           Control& control, bool quiet);

  /// From now on also appends to FOLDER/metrics.jsonl: a line for each step, validation and change
  /// of plan, with the number of steps done so far. Throws InputError when the file cannot be
  /// written.
  void open(const std::string& folder);
  /// Call before the executor runs steps from `first` on.
  void steps_begin_at(std::int64_t first) {
    if (first_ < 0) first_ = first;
  }
  /// Call after each step of this rank. Reports its loss to rank 0 (`counts` false: as 0), and the
  /// seconds that it has computed under this plan.
  void step(std::int64_t step, const StepLoss& loss, bool counts, double computed_s);
  /// Why this rank must leave, once rank 0 has found it too slow (recovery.slow_rank = "evict").
  std::optional<std::string> eviction() const;
  /// Rank 0, once: the rank whose samples others should take (recovery.slow_rank = "rebalance").
  std::optional<SlowRank> overloaded();
  /// Rank 0: says something about the run between two steps.
  void say(const std::string& text) { line(text, true); }
  /// Rank 0: waits for the reports of all steps before `end`. May be called on another thread while
  /// steps run, so that the metrics of a checkpoint's steps are on disk before the checkpoint is.
  void drain(std::int64_t end);
  /// Rank 0: says and writes down the validation loss after `step` steps. `seconds`: how long it
  /// took to measure.
  void validation(std::int64_t step, double loss, double seconds);
  /// The same of the loss on a folder of train.evaluate.
  void evaluated(std::int64_t step, const std::string& folder, double loss, double seconds);
  /// `stopped`: no step ran meanwhile. `base`: of an incremental checkpoint, of which the metrics
  /// get a line.
  void saved(std::int64_t step, const std::string& path, double seconds, bool stopped,
             const std::optional<BaseRecord>& base = {});

  /// The state before step `step` has passed its check.
  void checked(std::int64_t step);
  void replaced(const Replacement& replacement);
  /// Rank 0: seconds of each step from `step` on whose time is known.
  std::vector<double> times_since(std::int64_t step) const;

  /// Fills in losses, norms, times and MFU of the steps so far.
  void summarise(TrainSummary& summary) const;
  /// Prints one line about the whole run.
  void finish(const TrainSummary& summary);

 private:
  /// The sum of a step's reports so far.
  struct PendingStep {
    std::vector<std::pair<Id, double>> losses = {};  // by rank, as they come
    double square_norm = -1;
    double missed_labels = 0;   // of ranks that have given up the round
    std::vector<Id> late = {};  // they, and at the end of a round all that are late
  };
  void look_for_slow_rank(const StepReport& report);
  void collect();
  void tell(std::int64_t step, PendingStep told);
  /// Appends a line to the metrics, if there are any. Throws BackendError when it cannot.
  void write(const nlohmann::json& row);
  void line(const std::string& text, bool keep);
  double now() const;

  std::mutex lock_;  // of everything below, while steps run: `step`, `drain` and `saved`
  const job::Job& job_;
  const Data& data_;
  Control& control_;
  bool leader_, terminal_, quiet_;
  /// How many reports complete a step: one from each rank. In a program with free-running ranks,
  /// only these report, and each `reports_a_step_` reports in order of arrival make a step.
  int reports_a_step_ = 0;
  bool by_arrival_ = false, silent_ = false;  // free-running ranks exist; this rank reports nothing
  std::int64_t arrived_ = 0;
  bool live_ = false;  // the terminal shows a line without a line end
  double peak_flops_ = 0;
  std::string no_mfu_ = {}, mfu_suffix_ = {};  // why there is no MFU; what to print after the MFU
  std::string metrics_file_ = {};
  std::ofstream metrics_ = {};
  std::int64_t earlier_tokens_ = 0, earlier_steps_ = 0;  // of the run that this one goes on with
  std::map<std::int64_t, PendingStep> open_ = {};        // steps of which reports are missing
  std::map<std::int64_t, double> ended_ = {};  // by step: when rank 0 ended it, or its last report
                                               // arrived (free-running ranks)
  std::optional<SlowRanks> slow_ = {};         // rank 0, with recovery.slow_factor
  std::optional<SlowRank> overloaded_ = {};
  std::int64_t first_ = -1;
  std::vector<double> earlier_losses_ = {};  // of earlier starts of the run
  std::vector<double> losses_ = {}, norms_ = {}, times_ = {};
  std::int64_t lost_rounds_ = 0, other_rounds_ = 0;  // lost: every client was late
  std::optional<std::int64_t> diverged_ = {};  // the first step with a loss that is not finite
  std::vector<std::int64_t> timed_ = {};       // the step of each entry of times_
};

}  // namespace rehearse::runtime
