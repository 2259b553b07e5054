// What a job's [adaptive] asks of its run: two plans one after the other (Sun 2026, section 3.1:
// placement is evaluated anew "only once, after warm-up"), samples that follow measured speed.
#pragma once
#include <memory>
#include <optional>

#include "engine/job/job.h"
#include "engine/planner/planner.h"
#include "engine/planner/policy.h"

namespace rehearse::planner {

/// What the run warms up under: the plan in adaptive.warmup_plan; else, of a job whose own plan was
/// `decided`, the fastest that sums gradients whole; else nothing. Of a decided job it observes
/// gradients, for the decision that follows. Throws InputError (key and file) for a file whose plan
/// the job's own cannot follow: other ranks, batch or optimizer.
std::optional<plan::Plan> warm_up_plan(const job::Job& job, const plan::Decision* decided);

struct AdaptiveRun {
  plan::Plan first = {};
  bool warms_up = false;                // `first` is followed by another plan
  std::shared_ptr<Policy> policy = {};  // null: the run keeps its plan
};
/// `decide`: the plan after warm-up; empty: the job's own.
AdaptiveRun adaptive_run(const job::Job& job, const plan::Decision* decided = nullptr,
                         ReplaceOnce::Decide decide = {});

}  // namespace rehearse::planner
