// A job over weeks in which things break: its step time is predicted as by `rehearse simulate`, its
// checkpoints are priced on its cluster, and runs with drawn or given failures are walked.
// `rehearse simulate --duration`, each row of `rehearse compare --duration`, and `rehearse faults`.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/faults/event.h"
#include "engine/goodput/checkpoint_prices.h"
#include "engine/goodput/summary.h"
#include "engine/job/job.h"
#include "study/load.h"
#include "study/prediction/study.h"

namespace rehearse::study {

/// Seeds of a long run count draws of failures; its step time needs no more than this.
constexpr int most_step_seeds = 5;

/// What a long run needs beside the job: how it was loaded, to load it with fewer replicas.
struct LongRunOptions {
  JobSource source = {};
  Seconds duration = {};
  int seeds = 5;
  StudyOptions step = {};  // how the step time is predicted
};

/// Failures of a job: those that its model gives for each seed, or those of its trace.
struct JobFailures {
  std::string source = {};                 // name of the model, or path of the trace
  std::string summary = {};                // of the model
  double per_day = 0;                      // interruptions that the model expects; 0: a given trace
  std::vector<faults::Trace> traces = {};  // by seed; a given trace: one
  std::vector<std::uint64_t> seeds = {};   // of the draws; empty: a given trace
  bool of_slots = false;           // drawn: node n of a trace is the n-th node that the job uses
  std::optional<int> spares = {};  // of the model; a drawn trace keeps them
  std::optional<Seconds> replacement = {};
};
/// Throws InputError when the job states neither model nor trace, or a wrong one.
JobFailures failures_of(const job::Job& job, Seconds duration, int seeds);

struct LongRun {
  std::string label = {};  // in a comparison: "restart, sharded"
  job::RecoveryPolicy policy = {};
  job::Checkpoint checkpoint = {};
  int nodes = 0;
  Seconds duration = {}, step = {}, between = {};  // between incidents; 0: none
  double bytes = 0;                                // of a checkpoint
  double paid = 1;        // part of the nodes' rent: spot instances are paid while they are there
  bool searched = false;  // the interval was searched, not stated
  goodput::Setting setting = {};
  goodput::Summary summary = {};
  std::vector<goodput::IntervalScore> scores = {};
  /// Intervals of which a failure loses one half on average: more than 1 where some destroy the
  /// checkpoints that only nodes hold.
  double at_risk = 1;
  Seconds young = {}, daly = {};
  std::optional<double> closed_form_goodput = {};  // restart policy only
  std::vector<std::string> notes = {};
};

/// Predictions that the rows of a comparison share.
class LongRuns {
 public:
  /// Predicts the step time. Throws InputError as study does.
  LongRuns(const job::Job& job, const LongRunOptions& options);
  /// Walks the job with this policy and kind of checkpoint. Throws InputError when the method
  /// cannot have the policy, or the cluster lacks what the checkpoint needs.
  LongRun run(const job::Recovery& recovery, const job::Checkpoint& checkpoint);
  const Study& step() const { return step_; }
  const JobFailures& failures() const { return failures_; }

 private:
  void note_what_the_trace_lacks(LongRun& out) const;
  goodput::Setting setting_of(const job::Recovery& recovery, const job::Checkpoint& checkpoint);
  double paid_part() const;
  double fewer(int replicas);
  double relative_step(int replicas);
  double slowdown(const faults::Event& event);

  const job::Job& job_;
  LongRunOptions options_;
  JobFailures failures_;
  goodput::Layout layout_;
  Study step_;
  goodput::StateBytes state_;
  goodput::Failures incidents_;
  int elsewhere_ = 0;
  double paid_ = 1;
  /// By link and factor on its time: how many times as long steps take. The first one is without a
  /// slow link, in seconds.
  std::map<std::pair<std::string, double>, double> slow_links_ = {};
  /// By number of replicas, falling: the step time with the whole batch, as a multiple of the
  /// job's.
  std::vector<std::pair<int, double>> fewer_ = {};
  int too_few_ = 0;  // the largest number of replicas that is known to be too small
  std::string why_too_few_ = {};
  int waits_with_ = 0;     // replicas: the most with which the last run waits; 0: it never does
  double quiet_step_ = 0;  // seconds of the job's step without disturbances; 0: not known
};

/// `step`: the prediction of the run's step. Nothing: the rent is not known.
std::optional<RunCost> cost_of(const LongRun& run, const Study& step);
/// The JSON of docs/cli.md.
nlohmann::ordered_json to_json(const LongRun& run, const Study& step, const JobFailures& failures);

}  // namespace rehearse::study
