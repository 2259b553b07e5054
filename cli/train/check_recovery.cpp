#include "cli/train/check_recovery.h"

#include <fmt/format.h>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/methods/strategy.h"
#include "study/long_runs/rebalance.h"

namespace rehearse::cli {

using job::RecoveryPolicy;

void check_policy(const job::Job& job, bool elastic) {
  if (elastic && (job.recovery.policy == RecoveryPolicy::replica ||
                  job.recovery.policy == RecoveryPolicy::spare))
    throw InputError(fmt::format(
        "recovery.policy: \"{}\" with --nnodes: leave the policy out; nodes come and go as with "
        "\"grow\"",
        name_of(job.recovery.policy)));
  if (job.recovery.restarts > 0 && job.recovery.policy == RecoveryPolicy::replica &&
      (job.plan.exchange.sharding.zero > 0 || job.plan.mesh.dp < 2 ||
       methods::planned(job.plan.method)))
    throw InputError(fmt::format(
        "recovery.policy: \"replica\" needs whole replicas (method.dp >= 2, method.zero = 0) and a "
        "plan that the job states; method \"{}\" can use \"restart\", \"spare\", \"shrink\" and "
        "\"grow\"",
        job.plan.method));
}

void check_slow_rank(const job::Job& job, bool drains) {
  if (job.recovery.slow_rank != job::SlowRankPolicy::rebalance) return;
  study::check_rebalance(job);  // first: a method without shares has no use for what follows
  if (!drains)
    throw InputError(
        "recovery.slow_rank: \"rebalance\" needs --nproc, recovery.restarts > 0 and no --nnodes, "
        "since the launcher gives the ranks their new shares; adaptive.balance_every fits");
}

}  // namespace rehearse::cli
