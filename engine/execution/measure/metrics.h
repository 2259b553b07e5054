// Metrics of a trace, computed while it streams in, by the same code for every executor.
// Definitions:
//   - a step consumes one global batch and ends when its last op on any rank ends. A step time is
//   the difference of successive step ends (the first step begins at 0). Free-running roles count
//   their own iterations, so the other roles define the steps (with a parameter server: one
//   gradient from each worker).
//   - MFU = model FLOPs of a step (6N + 12 L h s per token, PaLM appendix B) / (step time x sum
//   over ranks of the peak rate of their device in the program's compute dtype). Recomputation is
//   not counted.
//   - bubble = idle share of the compute lane (the lane with the role's Compute ops), over
//   steady steps and all ranks that compute.
//   - exposed communication = seconds per step, mean over ranks, in which the compute lane is idle
//   while at least one communication op of the rank runs.
//   - energy = joules per step of all ranks' devices. A device draws its busy power while an op of
//   its compute lane runs (on a server: an update or a kernel), and its idle power otherwise.
//   - a run that stopped at a period of its steps (period.h) counts as run to its last step: the
//   steps that it left out equal those one period before.
//   - in time = of the samples of the steady rounds with a deadline (program::Round), the share
//   that ranks trained that met it; 1 without deadlines. Samples and tokens per second and MFU
//   count no other samples.
//   - robustness = 1 - std / mean of the step times within a seed, averaged over seeds.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/costs/costs.h"
#include "engine/execution/dry_run/fold.h"
#include "engine/execution/measure/stopping.h"
#include "engine/execution/trace/trace.h"
#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::execution {

/// A run begins more steps than it measures. Otherwise the last step would be shorter than others
/// where steps overlap, because no later step would delay its ops. The run ends with the last
/// steady step, so the later ones are run only as far as they overlap with it.
struct Steps {
  int warm_up = 5, steady = 50;
  int beyond = 4;  // begun and not measured

  int measured() const { return warm_up + steady; }
  int begun() const { return measured() + beyond; }
};
/// The steps, with enough beyond them for a program that has many steps in flight
/// (program::Op::shift).
Steps with_steps_in_flight(Steps steps, const program::Program& program);

/// The metrics of one run (one seed).
struct Metrics {
  std::vector<double> step_times = {};  // steady steps, seconds
  int steps_run = 0;                    // with the warm-up, without those known from the period
  int period = 0;                       // of the steps, in steps; 0: no period ended the run
  double mean_step = 0, std_step = 0, robustness = 1;
  double samples_per_s = 0, tokens_per_s = 0, mfu = 0;
  double bubble_fraction = 0;
  double exposed_comm_s = 0;
  double bytes_sent_mean = 0, bytes_sent_max = 0;  // per rank and step
  double bytes_per_step = 0;                       // all ranks
  double joules_per_step = 0;                      // all ranks; 0: some device's power is unknown
  double in_time = 1;                              // share of the samples
  bool exposed_exact = true;  // false: exposed_comm_s is approximate (occupancy.h)
};

class MetricsSink : public TraceSink {
 public:
  /// `samples_per_step`: the global batch size. `stopping`: when the run may stop; the default
  /// runs all steps. `fold`: the places of the records are its classes, each of which counts as
  /// often as it has places, all with equal devices; null: the places are those of the roles. The
  /// references must outlive the sink.
  MetricsSink(const link::OrderedProgram& linked, const model::ModelSpec& model,
              const cluster::Cluster& cluster, const costs::Costs& costs, int samples_per_step,
              Steps steps = {}, Stopping stopping = {}, const Fold* fold = nullptr);
  ~MetricsSink() override;
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override;
  bool may_stop() const override;
  /// Throws ProgramError when a step is missing from the trace, unless may_stop() had ended the
  /// run before that step.
  Metrics finish() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Mean, sample standard deviation and half-width of the 95% interval of the mean (Student's t) of
/// independent values; ci95 is 0 for fewer than two.
struct Spread {
  double mean = 0, std = 0, ci95 = 0;
  std::vector<double> values = {};
};
Spread spread(std::vector<double> values);

/// Metrics over several seeds, which run the same steps. Rates and shares of time are those of the
/// time of all seeds together; everything else is the mean over the seeds.
struct Summary {
  Spread step_time = {};
  double samples_per_s = 0, tokens_per_s = 0, mfu = 0, bubble_fraction = 0, exposed_comm_s = 0;
  double bytes_sent_mean = 0, bytes_sent_max = 0, bytes_per_step = 0, joules_per_step = 0,
         robustness = 1, in_time = 1;
};
Summary summarise(std::span<const Metrics> seeds);

}  // namespace rehearse::execution
