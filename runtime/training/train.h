// Runs one rank of a training run from its start to its last checkpoint. The rank links the
// program, opens the data, joins the other ranks and compares the program's hash with theirs; then
// it fills or loads the weights, runs steps, evaluates and saves. Rank 0 prints the progress.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/costs/profile.h"
#include "engine/execution/trace/trace.h"
#include "engine/faults/event.h"
#include "engine/job/job.h"
#include "engine/link/link.h"
#include "engine/planner/policy.h"
#include "runtime/control/control.h"

namespace rehearse::runtime {

struct TrainOptions {
  bool resume = false;
  std::string resume_from = {};  // a checkpoint or a folder of them; empty: train.out
  bool overwrite = false;        // replace a run in train.out; false: such a run is an error
  std::string import_weights =
      {};                  // Hugging Face's model.safetensors to start from; empty: random weights
  std::string trace = {};  // path of a Chrome trace of all ranks; empty: none
  int trace_steps = 10;    // how many steps under each plan are traced
  execution::TraceSink* sink = nullptr;  // rank 0: gets the trace of the first plan; null: none
  bool quiet = false;                    // no progress on standard output
  /// Faults that the ranks inject into themselves, events that not_replayed() accepts; null: none.
  std::shared_ptr<const faults::Trace> faults = {};
  /// Decides when and how the run changes its plan; null: the run keeps the job's plan. Every rank
  /// has a policy object of its own; the one of rank 0 decides.
  std::shared_ptr<planner::Policy> policy = {};
  /// Rank 0: called before the first step, with its number; empty: nobody wants to know.
  std::function<void(std::int64_t step)> began = {};
  /// Called when this rank is about to leave because it is too slow; empty: the same.
  std::function<void()> evicted = {};
  /// Called when the control plane finds a rank that others must end; empty: nobody wants to know.
  std::function<void(Id rank, Fate fate)> lost = {};
  /// Rank 0: called once when a rank is too slow and the run should drain and go on with other
  /// method.shares; `why` names the rank. Needed with recovery.slow_rank = "rebalance".
  std::function<void(const std::string& why, const std::vector<int>& shares)> unbalanced = {};
};

/// A change of plan.
struct Replacement {
  std::int64_t step = 0;   // the first one under the new plan
  std::string plan = {};   // the new plan in one line
  double seconds = 0;      // duration of the migration
  std::int64_t bytes = 0;  // sent by the migration, over all ranks
};

/// The result of a run. Losses, norms, times and MFU are known in rank 0 only.
struct TrainSummary {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  std::int64_t first_step = 0, end_step = 0;  // ran [first_step, end_step)
  int starts = 1;  // with those after failures. Steps and losses are of all, the rest of the last
  double first_loss = unknown, last_loss = unknown;  // mean per label of a step; NaN: no step
  double validation_loss = unknown;                  // the last one measured; NaN: none was
  std::vector<std::pair<std::string, double>> evaluated = {};  // the same on train.evaluate's
  std::vector<double> losses = {};                             // by step
  std::vector<double> grad_norms = {};                         // by step; NaN: not measured
  /// Seconds of the steps whose time is known: all but the first one, and the first one after a
  /// validation, a checkpoint or a change of plan.
  std::vector<double> step_times = {};
  double median_step_s = 0, tokens_per_s = 0, mfu = 0;  // of the steps in `step_times`; mfu 0:
                                                        // the devices' peak is not known
  std::int64_t bytes_sent = 0;                          // by this rank
  std::int64_t peak_device_bytes = 0;  // of this rank's accelerator (peak_bytes); 0: it has none
  std::string checkpoint = {};         // the last one saved, or the one resumed from; empty: none
  std::vector<Replacement> replacements = {};
  std::vector<tensors::LayerVariance> variances = {};  // gradient variances; empty: not observed
  int signal = 0;                                      // the signal that ended the run; 0: none
  bool drained = false;                                // the launcher asked for its end
};

/// Trains. Before the first step, throws InputError for anything wrong with job, data, checkpoint
/// or train.out, the same on every rank. Throws BackendError when this rank or another one fails.
TrainSummary train(const job::Job& job, const Environment& environment,
                   const TrainOptions& options);

}  // namespace rehearse::runtime
