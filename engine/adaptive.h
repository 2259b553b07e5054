// What a job's [adaptive] asks of its run: two plans one after the other (Sun 2026, section 3.1:
// placement is evaluated anew "only once, after warm-up"), samples that follow measured speed.
#pragma once
#include <memory>
#include <optional>

#include "engine/job.h"
#include "engine/policy.h"

namespace rehearse {

/// The plan in adaptive.warmup_plan; nothing where the job names none. Throws InputError (key and
/// file) for one that the job's own plan cannot follow: other ranks, batch or optimizer.
std::optional<Plan> warm_up_plan(const Job& job);

struct AdaptiveRun {
  Plan first = {};
  std::shared_ptr<Policy> policy = {};  // null: the run keeps its plan
};
AdaptiveRun adaptive_run(const Job& job);

}  // namespace rehearse
