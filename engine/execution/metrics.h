// What a trace means, computed by one streaming function whoever made the trace. Definitions:
//   - a step is one global batch consumed; it ends when its last op on any rank ends; a step time
//   is the difference of successive step ends (the first step begins at 0). Free-running roles
//   count iterations of their own, so steps are the others' (a parameter server's: as many
//   gradients as there are workers).
//   - MFU = model FLOPs of a step (6N + 12 L h s per token, PaLM appendix B) / (step time x sum
//   over ranks of the peak rate of their device in the program's compute dtype). Recomputation is
//   not counted.
//   - bubble = idle share of the compute lane (the lane that holds the role's Compute ops), over
//   steady steps and all ranks that compute.
//   - exposed communication = seconds a step, mean over ranks, during which the compute lane idles
//   while at least one communication op of the rank is under way.
//   - energy = joules a step of all ranks' devices: each draws its idle power throughout and, while
//   an op of its compute lane runs (a server: an update or a kernel), its busy power instead.
//   - robustness = 1 - std / mean of the step times within a seed, averaged over seeds.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/costs/costs.h"
#include "engine/execution/trace.h"
#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::execution {

struct Steps {
  int warm_up = 5, steady = 50;
};

/// One seed.
struct Metrics {
  std::vector<double> step_times = {};  // steady steps, seconds
  double mean_step = 0, std_step = 0, robustness = 1;
  double samples_per_s = 0, tokens_per_s = 0, mfu = 0;
  double bubble_fraction = 0;
  double exposed_comm_s = 0;
  double bytes_sent_mean = 0, bytes_sent_max = 0;  // per rank and step
  double bytes_per_step = 0;                       // all ranks
  double joules_per_step = 0;  // all ranks; 0: the power of some device is not known
  bool exposed_exact = true;   // false: some late interval met a gap that had been given up
};

class MetricsSink : public TraceSink {
 public:
  /// `samples_per_step`: the global batch. The references must outlive the sink.
  MetricsSink(const link::LinkedProgram& linked, const model::ModelSpec& model,
              const cluster::Cluster& cluster, const costs::Costs& costs, int samples_per_step,
              Steps steps = {});
  ~MetricsSink() override;
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override;
  /// Throws ProgramError when a steady step is missing from the trace.
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

/// Over seeds: each seed counts once.
struct Summary {
  Spread step_time = {};
  double samples_per_s = 0, tokens_per_s = 0, mfu = 0, bubble_fraction = 0, exposed_comm_s = 0;
  double bytes_sent_mean = 0, bytes_sent_max = 0, bytes_per_step = 0, joules_per_step = 0,
         robustness = 1;
};
Summary summarise(std::span<const Metrics> seeds);

}  // namespace rehearse::execution
