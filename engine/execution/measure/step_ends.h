// When each step of a run ends, from its first step on. The run stops at a period of its steps
// (period.h), because all later steps follow from it; under a fault trace, at one that begins after
// the effects of all events and that no later event disturbs.
#pragma once
#include <optional>
#include <vector>

#include "engine/execution/dry_run/fault_replay.h"
#include "engine/execution/measure/period.h"
#include "engine/execution/trace/trace.h"
#include "engine/link/link.h"

namespace rehearse::execution {

class StepEnds : public TraceSink {
 public:
  /// `at_period` false: all steps are run. `faults` null: nothing breaks.
  StepEnds(const link::OrderedProgram& linked, int steps, bool at_period,
           const FaultReplay* faults);
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends) override;
  bool may_stop() const override { return may_stop_; }
  /// Of the steps that are complete, and of those that follow from a period: when the step and all
  /// before it had ended.
  std::vector<double> ends() const;

 private:
  bool decide() const;

  const link::OrderedProgram& linked_;
  const FaultReplay* faults_;
  int steps_ = 0;
  std::optional<PeriodFinder> finder_ = {};
  std::optional<Period> period_ = {};
  std::vector<double> first_start_, ends_, done_ = {};  // by step; done_: complete leading steps
  std::vector<std::int64_t> missing_;                   // by step: (rank, op) instances to come
  bool may_stop_ = false;
};

}  // namespace rehearse::execution
