// Turns a job's [adaptive] into the first plan and the policy of its run: a change of plan after
// warm-up (Sun 2026, section 3.1: placement is evaluated anew "only once, after warm-up") and load
// balancing.
//
//     step 0                 warmup_steps                 multiples of balance_every
//     | first plan           | the job's (or a new) plan  | new samples per replica ...
//       observes variances   ^ migrate                    ^ migrate, if it saves enough
#pragma once
#include <memory>
#include <optional>

#include "engine/job/job.h"
#include "engine/planner/planner.h"
#include "engine/planner/policy.h"

namespace rehearse::planner {

/// The plan for warm-up: the one in adaptive.warmup_plan; else, if the planner `decided` the job's
/// plan, the fastest plan with dense gradients; else none, and none where variances cannot change
/// the decision (one rank, or method.reduction = "dense"). If the planner decided, the warm-up plan
/// also observes gradient variances for the next decision. Throws InputError (key and file) when
/// the run cannot change from the file's plan to the job's plan: other world size, batch, optimizer
/// or clipping.
std::optional<plan::Plan> warm_up_plan(const job::Job& job, const plan::Decision* decided);

struct AdaptiveRun {
  plan::Plan first = {};
  bool warms_up = false;                // the policy replaces `first` after warm-up
  std::shared_ptr<Policy> policy = {};  // null: the run keeps its plan
};
/// `decide` returns the plan after warm-up; empty: the job's own plan.
AdaptiveRun adaptive_run(const job::Job& job, const plan::Decision* decided = nullptr,
                         ReplaceOnce::Decide decide = {});

}  // namespace rehearse::planner
