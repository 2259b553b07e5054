// One rank of a training run, from the environment to the last checkpoint: joins the others, links
// the program and agrees on its hash, opens the data, fills or loads the weights, runs steps,
// evaluates, saves, and tells rank 0's user how it goes.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/execution/trace.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "engine/planner/policy.h"
#include "runtime/control/environment.h"

namespace rehearse::runtime {

struct TrainOptions {
  bool resume = false;
  std::string resume_from = {};     // a checkpoint or a folder of them; empty: train.out's
  bool overwrite = false;           // replace the run in train.out; otherwise it is refused
  std::string import_weights = {};  // GPT-2's model.safetensors to begin with
  std::string trace = {};           // Chrome trace of the first `trace_steps` steps, all ranks
  int trace_steps = 10;
  execution::TraceSink* sink = nullptr;  // rank 0: gets the same trace
  bool quiet = false;                    // no progress on standard output
  /// When and how the run changes its plan; null: it keeps the job's. Every rank has one of its
  /// own, rank 0's decides.
  std::shared_ptr<planner::Policy> policy = {};
};

/// A change of plan.
struct Replacement {
  std::int64_t step = 0;   // the first one under the new plan
  std::string plan = {};   // in a line
  double seconds = 0;      // of the migration
  std::int64_t bytes = 0;  // that it sent, all ranks together
};

/// What rank 0 knows at the end; the other ranks know steps and signal.
struct TrainSummary {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  std::int64_t first_step = 0, end_step = 0;         // ran [first_step, end_step)
  double first_loss = unknown, last_loss = unknown;  // per label, of the global batch; NaN: no step
  double validation_loss = unknown;     // at the end; NaN where there is no validation data
  std::vector<double> losses = {};      // by step
  std::vector<double> grad_norms = {};  // by step; NaN where not measured
  std::vector<double> step_times = {};  // seconds, by step from the second on
  double median_step_s = 0, tokens_per_s = 0, mfu = 0;  // of the steps after the first; mfu 0:
                                                        // peak not known
  std::int64_t bytes_sent = 0;                          // by this rank
  std::string checkpoint = {};  // the last one saved; of a run with nothing to do: where it is
  std::vector<Replacement> replacements = {};
  std::vector<tensors::LayerVariance> variances = {};  // of this run's gradients, if observed
  int signal = 0;                                      // that ended the run; 0: none
};

/// Trains. Throws InputError before the first step for anything wrong with job, data, checkpoint or
/// train.out, on every rank the same; BackendError when this rank or another one fails.
TrainSummary train(const job::Job& job, const Environment& environment,
                   const TrainOptions& options);

}  // namespace rehearse::runtime
