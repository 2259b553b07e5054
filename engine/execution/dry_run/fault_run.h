// A run under a fault trace: when its steps end, what became of the events, and why it stopped.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/execution/dry_run/fault_replay.h"
#include "engine/execution/measure/step_ends.h"
#include "engine/execution/trace/chrome_trace.h"

namespace rehearse::execution {

struct FaultRun {
  std::vector<double> ends = {};            // of the steps that were done, from the first
  std::vector<FaultOutcome> outcomes = {};  // by event; empty: the run had no trace
  std::optional<FaultStop> stop = {};       // nothing: all steps were done
};

/// `faults` null: the run had no trace.
FaultRun run_of(const StepEnds& steps, const FaultReplay* faults);
/// Marks in the trace file what struck.
void mark_events(ChromeTrace& trace, const FaultReplay& faults);

std::string to_json(const FaultRun& run);
FaultRun fault_run_of(const std::string& json);

}  // namespace rehearse::execution
