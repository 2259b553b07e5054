// A fault trace within the simulated steps of a job (docs/faults.md): the steps are run with and
// without it, and the difference is what its events cost.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/execution/dry_run/fault_run.h"
#include "engine/faults/event.h"
#include "engine/job/job.h"
#include "study/prediction/runs.h"

namespace rehearse::study {

/// Reads the job's fault trace, which must be stated. Throws InputError.
faults::Trace given_trace(const job::Job& job);
/// Adds a warning if the job has a fault trace: steps are predicted without it.
void warn_of_trace(const job::Job& job, std::vector<std::string>& warnings);

/// How many times as long transfers over the link of a packet_loss take, those of one connection
/// between devices of the job that has the link to itself. 1: no path of the job's has the link.
double loss_slowdown(const job::Job& job, const faults::Event& event);

/// What one event did.
struct FaultEffect {
  std::size_t number = 0;  // in the trace, from 1
  std::string kind = {}, text = {};
  std::optional<double> at = {};     // seconds; nothing: it did not strike
  int step = 0;                      // in which it struck, from 1
  std::optional<double> until = {};  // nothing: for good
  /// Seconds by which the steps from this one to that of the next event were longer.
  double cost_s = 0;
  std::vector<std::size_t> together = {};  // other events of that step, which share the cost
  std::string nothing = {};                // why it has no effect
};

/// Of the first seed, but for `run_s` and `undisturbed_s`, which are means over all seeds.
struct FaultStudy {
  std::string source = {};
  int steps = 0;                        // asked for
  double run_s = 0, undisturbed_s = 0;  // of the steps that were done
  std::vector<double> step_times = {}, undisturbed = {};
  std::vector<FaultEffect> events = {};
  std::optional<execution::FaultStop> stop = {};  // of the first seed that stopped
  int stopped_seeds = 0, seeds = 0;
  int steps_done = 0;
  int lost_steps = 0;  // of them, since the last checkpoint
  double lost_s = 0;   // from then until the event that stopped the run
  std::vector<std::string> notes = {};
};

/// Throws InputError when the fidelity cannot replay an event.
FaultStudy study_faults(const Runs& runs, const faults::Trace& trace);

nlohmann::ordered_json to_json(const FaultStudy& faults);
/// Several lines: the time of all steps, the stop, one line for each event.
std::string describe(const FaultStudy& faults);

}  // namespace rehearse::study
