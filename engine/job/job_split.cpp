#include "engine/job/job_split.h"

#include <fmt/format.h>

#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/methods/strategy.h"

namespace rehearse::job {

namespace {

void check_clients(const Config& train, const Job& job) {
  const int clients = job.train.clients, ranks = job.plan.mesh.dp;
  if (clients == 0) return;
  const auto bad = [&](const std::string& why) {
    return train.error("clients", fmt::format("{}: {}", clients, why));
  };
  if (job.train.split == Split::iid)
    throw bad(
        "clients without texts of their own are all alike; train.split = \"source\" gives them "
        "texts");
  if (clients < ranks)
    throw bad(fmt::format("{} data-parallel ranks play a client each in a round; at least {}",
                          ranks, ranks));
  const methods::Strategy& method = methods::strategy_named(job.plan.method);
  if (method.combines.graph)
    throw bad(fmt::format(
        "a rank plays one client after another, so all must begin a round with equal weights; "
        "with method \"{}\" ranks never have equal ones",
        job.plan.method));
  if (method.sync && method.sync(job.plan).workers_run_free())
    throw bad(fmt::format(
        "with method \"{}\" workers do not wait for each other, so no round begins for all; use a "
        "method such as \"fedavg\", or leave out train.clients",
        job.plan.method));
}

}  // namespace

void check_split(const Config& train, const Job& job) {
  check_clients(train, job);
  if (job.train.split == Split::iid) return;
  const auto bad = [&](const std::string& why) { return train.error("split", why); };
  if (methods::planned(job.plan.method) || job.adaptive.balance_every > 0)
    throw bad(fmt::format(
        "\"source\": {} changes the samples of ranks in mid-run, and with them their sources; use "
        "\"iid\"{}",
        job.adaptive.balance_every > 0 ? "adaptive.balance_every"
                                       : fmt::format("method \"{}\"", job.plan.method),
        job.adaptive.balance_every > 0 ? ", or leave that out" : ", or a method such as \"ddp\""));
  if (!job.train.left_out.empty() ||
      (job.recovery.restarts > 0 && job.recovery.policy == RecoveryPolicy::replica))
    throw bad(
        "\"source\": without the samples of lost replicas (train.left_out, recovery.policy = "
        "\"replica\") the other ranks would get other sources; use \"iid\", or another "
        "recovery.policy");
}

}  // namespace rehearse::job
